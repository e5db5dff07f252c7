"""Messages in any order, from any thread, including expired ones."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from farandole.core.groups.inbox import Transfer
from farandole.core.groups.messages import Messages
from farandole.errors import HorovodInternalError, MismatchError, StalledError
from tests import pool
from tests.kits.messages import mentions

RANKS, THREADS = 3, 2
ANYBODY = 9  # a tag: who receives it names no source
LENGTHS = (0, 1, 24, 4096, 65_536, 70_000, 300_000)  # less than a ring, all of it, more


def streams_without_news() -> Any:
    """Return the streams of rank 0 of 2, on which nothing arrives."""
    aborted: list[str] = []
    return SimpleNamespace(
        rank=0,
        size=2,
        names=range(2),
        overhead=0,
        aborted=aborted,
        abort=aborted.append,
        read=lambda *_: 0,
        gone=lambda _: None,
        wait=lambda *_, spin: None,
        wake=lambda: None,
        close=lambda: None,
    )


def test_message_payloads_are_aligned_to_64_bytes() -> None:
    """Like tensors in memory; unaligned copies are slower."""
    streams, written = streams_without_news(), []

    def write(dst: int, data: np.ndarray) -> int:
        written.append(len(data))
        return len(data)

    streams.write, streams.seal = write, lambda dst, content: content
    assert Messages(streams, "rank {}".format).send(1, 0, np.zeros(100_000, np.uint8), 0, 60.0).done
    assert written[-1] == 100_000
    assert sum(written[:-1]) % 64 == 0


def test_a_silent_rank_is_queried_without_a_lock() -> None:
    """The query takes seconds, in which other threads create and abandon messages."""
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
    assert streams.aborted == [f"StalledError (rank 1): {late.error}"]
    assert given_up.done
    assert mentions(str(given_up.error), "message")
    messages.close(0.0)
    assert isinstance(made[0].error, HorovodInternalError)


@pytest.mark.parametrize("began", [False, True], ids=["when it began", "while it was waited for"])
def test_a_signal_between_bytes_of_messages_ends_them(began: bool) -> None:
    """The number of transferred bytes is unknown: bytes would be sent twice, or awaited forever."""
    streams, begun = streams_without_news(), threading.Event()
    streams.seal = lambda dst, content: content

    def write(dst: int, data: np.ndarray) -> int:
        if began and not begun.is_set():
            begun.set()
            return 0
        raise KeyboardInterrupt

    streams.write = write
    messages = Messages(streams, "rank {}".format)
    messages._thread = threading.current_thread()  # no other thread moves them
    other = messages.receive(1, 1, np.empty(1, np.uint8), 0, 60.0)

    def send() -> Transfer:
        return messages.send(1, 0, np.zeros(100_000, np.uint8), 0, 60.0)

    call = partial(messages.wait, send()) if began else send
    with pytest.raises(KeyboardInterrupt):
        call()
    assert other.done
    assert mentions(str(other.error), "message")
    assert str(other.error).endswith(": KeyboardInterrupt")
    assert streams.aborted == [f"rank 0: {other.error}"]
    assert messages.receive(1, 2, np.empty(1, np.uint8), 0, 60.0).error is other.error
    messages.close(0.0)


class Planned(NamedTuple):
    """The message ``number`` from ``src`` to ``dst`` with this tag."""

    src: int
    dst: int
    tag: int
    number: int
    length: int

    def content(self) -> Any:
        return np.full(self.length, hash(self[:4]) & 0xFF, np.uint8)


def planned(chance: random.Random) -> list[Planned]:
    sent: Counter[tuple[int, int, int]] = Counter()
    plan = []
    for _ in range(80):
        src, dst = chance.sample(range(RANKS), 2)
        tag = chance.choice([*range(THREADS), ANYBODY])
        plan.append(
            Planned(
                src, dst, tag, sent[src, dst, tag], 5 if tag == ANYBODY else chance.choice(LENGTHS)
            )
        )
        sent[src, dst, tag] += 1
    return plan


def exchange(messages: Messages, rank: int, plan: Sequence[Planned], chance: random.Random) -> None:
    """Run this rank's part of ``plan`` in its own order, except for messages of one sender and tag.
    It waits for some messages on the way, but briefly: other ranks may need later ones.
    """
    sends = [each for each in plan if each.src == rank]
    receives = [each for each in plan if each.dst == rank]
    receives.sort(key=lambda each: (each.number, chance.random()))
    order = [0] * len(sends) + [1] * len(receives)
    chance.shuffle(order)
    under_way: list[tuple[Planned, Transfer, Any, bool]] = []
    for receiving in order:
        each = (receives if receiving else sends).pop(0)
        if receiving:
            data = np.zeros(each.length, np.uint8)
            source = None if each.tag == ANYBODY else each.src
            message = messages.receive(source, each.tag, data, 0, 600.0)
        else:
            data = each.content()
            message = messages.send(each.dst, each.tag, data, 0, 600.0)
        under_way.append((each, message, data, bool(receiving)))
        if chance.random() < 0.3:
            messages.wait(chance.choice(under_way)[1], 0.001)
    came: Counter[tuple[int, int]] = Counter()
    wanted: Counter[tuple[int, int]] = Counter()
    numbers: Counter[int] = Counter()
    for each, message, data, received in under_way:
        messages.wait(message)
        assert message.error is None
        if received and each.tag == ANYBODY:  # in the order of each sender
            expected = Planned(message.source, rank, ANYBODY, numbers[message.source], 5).content()
            numbers[message.source] += 1
            came[message.source, ANYBODY] += 1
            wanted[each.src, ANYBODY] += 1
            assert (data == expected).all()
        elif received:
            assert message.source == each.src
            assert (data == each.content()).all(), each
    assert came == wanted


def random_messages(transport: Any, seed: int) -> None:
    from farandole.core.transports.shm import streams

    usual, streams.RING = streams.RING, streams.SMALLEST
    try:
        messages = Messages(transport.streams(), "rank {}".format)
    finally:
        streams.RING = usual
    plan = planned(random.Random(seed))

    def part(thread: int) -> None:
        tags = (thread, ANYBODY) if thread == 0 else (thread,)
        mine = [each for each in plan if each.tag in tags]
        exchange(messages, transport.rank, mine, random.Random(f"{seed} {transport.rank} {thread}"))

    pool.threads(THREADS, lambda thread: _Nothing(thread), lambda each: part(each.thread))
    transport.barrier()
    messages.close(10.0)


class _Nothing(NamedTuple):
    """The wire of a thread, with nothing to close."""

    thread: int

    def abort(self, why: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_random_messages_of_several_threads(wire: str) -> None:
    """Each arrives as it was sent, and in order, against a plan that all ranks know."""
    pool.procs(
        RANKS, lambda transport: [random_messages(transport, seed) for seed in range(3)], wire=wire
    )


def one_that_does_not_fit(transport: Any, aside: bool) -> None:
    messages = Messages(transport.streams(), "rank {}".format)
    data = np.zeros(8, np.uint8)
    if transport.rank == 0:
        for tag in (1, 2):
            messages.wait(messages.send(1, tag, data, 0, 60.0))
    else:
        if aside:  # by who wants the one behind it
            messages.wait(messages.receive(0, 2, data.copy(), 0, 60.0))
        wrong = messages.receive(0, 1, np.zeros(16, np.uint8), 0, 60.0)
        messages.wait(wrong)
        assert isinstance(wrong.error, MismatchError), wrong.error
        later = messages.receive(0, 3, data, 0, 60.0)
        messages.wait(later)
        assert isinstance(later.error, HorovodInternalError)
        assert str(wrong.error) in str(later.error)
    transport.barrier()
    messages.close(0.0)


@pytest.mark.parametrize("aside", [False, True], ids=["awaited", "aside"])
def test_a_message_of_the_wrong_size_ends_the_group(aside: bool) -> None:
    pool.procs(2, lambda transport: one_that_does_not_fit(transport, aside), wire="shm")
