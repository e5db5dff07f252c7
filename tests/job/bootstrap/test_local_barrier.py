"""The barrier of the ranks of one host: threads, and other ranks that are reported as ended."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from farandole.errors import RendezvousError
from farandole.job.bootstrap import local_barrier
from farandole.job.bootstrap.siblings import NO_SIBLINGS
from farandole.job.config import Placement


class Seen:
    """The ranks of a host, some of them ended."""

    def __init__(self, job: str, ended: Sequence[int] = ()) -> None:
        self.job, self._ended = job, list(ended)

    def ended(self) -> list[int]:
        return self._ended


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex


def here(rank: int, **more: Any) -> Placement:
    return Placement(**{"rank": rank, "size": 4, "local_rank": rank, "local_size": 4, **more})


def test_all_ranks_continue_when_the_last_one_arrives(job: str) -> None:
    gone: list[int] = []
    last = threading.Event()

    def enter(rank: int) -> None:
        local_barrier.wait(here(rank), 60.0, Seen(job))  # type: ignore[arg-type]
        assert last.is_set()
        gone.append(rank)

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(4)]
    for thread in threads[1:]:
        thread.start()
    with socket.socket(socket.AF_UNIX) as stranger:
        while stranger.connect_ex(local_barrier._name(job, 2)):
            os.sched_yield()
        stranger.sendall(b"??")
    last.set()
    threads[0].start()
    for thread in threads:
        thread.join(60)
    assert sorted(gone) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ended", "more", "says"),
    [
        ([2, 3], {}, "ranks 2, 3 ended before init(): no process of them is left."),
        (
            [3],
            {"size": 9, "hostname": "b"},
            "local rank 3 on b ended before init(): no process of it is left.",
        ),
        ([], {}, "ranks 1-3 did not reach init() within 0 s."),
    ],
)
def test_ranks_that_do_not_come_are_named(
    ended: list[int], more: dict[str, Any], says: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_barrier, "LOOK", 0.01)
    with pytest.raises(RendezvousError) as caught:
        local_barrier.wait(here(0, **more), 60.0 if ended else 0.0, Seen(job, ended))  # type: ignore[arg-type]
    assert str(caught.value).startswith(says)


def test_hidden_ranks_have_no_barrier() -> None:
    local_barrier.wait(here(0), 60.0, NO_SIBLINGS)
