"""Messages whose time is over."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from farandole.errors import HorovodInternalError, StalledError
from farandole.groups.messages import Messages


def streams_without_news() -> Any:
    """Of rank 0 of 2; nothing ever comes."""
    aborted: list[str] = []
    return SimpleNamespace(
        rank=0, size=2, overhead=0, aborted=aborted, abort=aborted.append, read=lambda *_: 0, gone=lambda _: None,
        wait=lambda *_: None, wake=lambda: None, close=lambda: None,
    )  # fmt: skip


def test_where_a_silent_rank_stands_is_asked_with_no_lock_held() -> None:
    """It takes seconds, in which others make messages, and give them up."""
    streams, asked, answered = streams_without_news(), threading.Event(), threading.Event()

    def where(ranks: Sequence[int]) -> str:
        asked.set()
        answered.wait(60)
        return f"\n{list(ranks)} is at: a line"

    messages = Messages(streams, "rank {}".format, where)
    late, given_up = (messages.receive(1, tag, np.empty(1, np.uint8), 0, 0.0) for tag in (1, 2))
    waiter = threading.Thread(target=messages.wait, args=(late, 60.0), daemon=True)
    waiter.start()
    assert asked.wait(60)
    made: list[Any] = []

    def others() -> None:
        made.append(messages.receive(1, 3, np.empty(1, np.uint8), 0, 60.0))
        messages.cancel(given_up)

    other = threading.Thread(target=others, daemon=True)
    other.start()
    other.join(60)
    kept = other.is_alive()
    answered.set()
    waiter.join(60)
    other.join(60)
    assert not kept
    assert late.done
    assert isinstance(late.error, StalledError)
    assert str(late.error).endswith("[1] is at: a line")
    assert streams.aborted == [str(late.error)]
    assert given_up.done
    assert "it was given up" in str(given_up.error)
    messages.close(0.0)
    assert isinstance(made[0].error, HorovodInternalError)
