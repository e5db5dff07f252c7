"""Averages of pairs: their arithmetic alone, and ranks with real sockets in threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest

from farandole.core.gossip import partner as partner_module
from farandole.core.gossip.peer_group import PeerGroup, PeerServer
from farandole.core.gossip.shared_weights import SharedWeights
from farandole.core.ps.dial import dial
from farandole.errors import PeerLostError, UnfinishedHandshakeError
from farandole.net.handshake import new_secret
from tests.kits.messages import mentioning
from tests.kits.worlds import until
from tests.pool import threads

SHAPES = [(3, 4), (), (0,), (5,)]


def test_any_order_of_events_keeps_the_sum() -> None:
    for seed in range(300):
        random = Random(seed)
        n = random.randint(2, 5)
        ranks = [
            SharedWeights([np.full(2, float(rank)), np.zeros((), dtype="f4")]) for rank in range(n)
        ]
        wanted = sum(range(n))
        lent: dict[int, tuple[int, Any]] = {}  # by the rank that asks: whom, and what is under way
        for _ in range(40):
            rank, other = sorted(random.sample(range(n), 2))
            engaged = {*lent, *(pair[0] for pair in lent.values())}
            what = random.choice(("learn", "lend", "move"))
            if what == "learn":
                ranks[rank].take([np.full(2, 1.0), np.ones((), dtype="f4")])
                wanted += 1
            elif what == "lend" and not engaged & {rank, other}:
                memory = [flat.copy() for flat in ranks[rank].flat]
                ranks[rank].lend(memory)
                lent[rank] = other, memory
            elif what == "move" and rank in lent:
                whom, memory = lent.pop(rank)
                ranks[whom].halve(memory)
                if random.random() < 0.1:
                    ranks[whom].undo(memory)
                else:
                    ranks[rank].move(memory)
        held = sum(float(shared.flat[1][0]) for shared in ranks)
        assert held == pytest.approx(wanted), seed


def test_averages_converge_with_statistics_and_damping() -> None:
    def one(rank: int) -> SharedWeights:
        first = [
            np.full((2, 3), rank, dtype="f4"),
            np.full(2, 4.0 * rank),
            np.full((), rank, dtype="f4"),
        ]
        return SharedWeights(first, statistics=1)

    ranks = [one(rank) for rank in range(4)]
    random = Random(1)
    for _ in range(200):
        lower, higher = sorted(random.sample(range(4), 2))
        memory = [np.empty_like(flat) for flat in ranks[lower].flat]
        ranks[lower].lend(memory)
        ranks[higher].halve(memory)
        ranks[lower].move(memory)
    for shared in ranks:
        given = [np.full((2, 3), 3.0, dtype="f4"), np.full(2, 3.0), np.ones((), dtype="f4")]
        seen = shared.averages
        assert shared.take(given, damp=True) == seen  # none was taken before
        assert np.allclose(given[0], 1.5 + 3 / seen)
        assert np.allclose(given[1], 6.0 + 3 / seen)
    last = [np.zeros((2, 3), dtype="f4"), np.zeros(2), np.full((), 9.0, dtype="f4")]
    assert ranks[0].take(last) == 0
    # no average since: this rank's weights are its published ones
    assert last[2] == pytest.approx(9.0)
    assert ranks[0].parts == [("<f4", 7), ("<f8", 2)]


class Ranks:
    """``n`` ranks; ``ended``: those that have ended in order."""

    def __init__(self, n: int, tls: bool = False, elastic: bool = False) -> None:
        self.secret, self.ended = new_secret(tls=tls), set[int]()
        self.servers = [
            PeerServer(
                rank,
                self.secret,
                ["127.0.0.1"],
                self.ended.__contains__,
                survives_losses=elastic,
            )
            for rank in range(n)
        ]

    def group(self, rank: int, first: Sequence[Any]) -> PeerGroup:
        addresses = [server.address for server in self.servers]
        return PeerGroup(
            self.servers[rank], "g", addresses, range(len(addresses)), SharedWeights(first)
        )


@contextmanager
def serving(n: int, tls: bool = False, elastic: bool = False) -> Iterator[Ranks]:
    made = Ranks(n, tls, elastic)
    try:
        yield made
    finally:
        made.ended.update(range(n))
        for server in made.servers:
            server.close()


class _Wire:
    """A wire with nothing to close."""

    def abort(self, why: str) -> None: ...
    def close(self) -> None: ...


def run(n: int, fn: Callable[[int], Any]) -> list[Any]:
    numbers = iter(range(n))
    return threads(n, lambda rank: _Wire(), lambda wire: fn(next(numbers)))


@pytest.mark.parametrize("tls", [False, True], ids=["", "tls"])
def test_simultaneous_requests_keep_the_sum(tls: bool) -> None:
    with serving(4, tls) as ranks:
        groups = [
            ranks.group(rank, [np.full(shape, float(rank)) for shape in SHAPES])
            for rank in range(4)
        ]

        def stepped(rank: int, change: float) -> list[Any]:
            given = [np.full(shape, change) for shape in SHAPES]
            groups[rank].take(given)
            groups[rank].ask(range(rank + 1, 4))
            return given

        def fn(rank: int) -> None:
            for _ in range(50):
                stepped(rank, rank + 1.0)

        run(4, fn)
        for _ in range(100):
            shown = [stepped(rank, 0.0) for rank in range(4)]
            for group in groups:
                group.rest(20)
        assert sum(group.asked for group in groups) == sum(group.answered for group in groups) > 0
        for own in shown:
            assert all(np.allclose(one, 1.5 + 50 * 2.5, rtol=1e-9) for one in own)


def test_a_clean_end_is_no_loss_and_any_other_is_reported() -> None:
    with serving(3) as ranks:
        groups = [ranks.group(rank, [np.full(2, float(rank))]) for rank in range(3)]
        ranks.ended.add(1)
        ranks.servers[1].close()
        groups[0].ask([1, 2])
        groups[0].rest(60)
        assert (groups[0].asked, groups[2].answered) == (1, 1)
        ranks.servers[2].close()  # it does not know that this rank ended
        groups[0].ask([1, 2])
        groups[0].rest(60)
        with pytest.raises(PeerLostError, match=mentioning("rank 2", "weights")) as raised:
            groups[0].take([np.zeros(2)])
        assert raised.value.rank == 2


def test_an_elastic_job_averages_on_without_a_lost_rank() -> None:
    with serving(3, elastic=True) as ranks:
        groups = [ranks.group(rank, [np.full(2, float(rank))]) for rank in range(3)]
        ranks.servers[1].close()  # its end was not in order
        for _ in range(2):  # the first request finds the loss
            groups[0].ask([1, 2])
            groups[0].rest(60)
        given = [np.zeros(2)]
        groups[0].take(given)
        assert given[0].tolist() == [1.0, 1.0]
        assert groups[2].answered == 1


def test_a_partner_that_hangs_up_on_its_caller_is_called_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that was killed may still have taken the call: it is lost, and not silent."""
    calls = []

    def hangs_up_once(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise UnfinishedHandshakeError(
                "handshake on the weights socket failed: connection reset by peer"
            )
        return dial(*given)

    with serving(2) as ranks:
        groups = [ranks.group(rank, [np.full(2, float(rank))]) for rank in range(2)]
        ranks.servers[1].close()
        monkeypatch.setattr(partner_module, "dial", hangs_up_once)
        groups[0].ask([1])
        groups[0].rest(60)
        with pytest.raises(PeerLostError, match=mentioning("rank 1", "weights")):
            groups[0].take([np.zeros(2)])


def test_silent_partners_are_left_alone_and_other_models_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(3) as ranks:
        groups = [ranks.group(rank, [np.full(2 + (rank == 2), float(rank))]) for rank in range(3)]
        # it has accepted, and does nothing
        with groups[1]._changed, monkeypatch.context() as patch:
            patch.setattr(partner_module, "SILENCE", 0.2)
            groups[0].ask([1])
            groups[0].rest(60)
        assert groups[0].asked == 0
        assert not groups[0]._partners[1].reachable()  # type: ignore[union-attr]
        groups[0].ask([1, 2])
        groups[0].rest(60)
        for place in (0, 2):
            with pytest.raises(
                ValueError,
                match=mentioning("rank 0", "rank 2", "'<f8', 3"),
            ):
                groups[place].take([np.zeros(2 + (place == 2))])
        with pytest.raises(ValueError, match=mentioning("size", "optimizer")):
            groups[1].take([np.zeros(9)])


def test_lasting_differences_of_weights_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No rank waits for others, so the ranks would silently drift apart."""
    monkeypatch.setattr(partner_module, "APART", -1.0)  # at once
    with serving(2) as ranks:
        groups = [ranks.group(rank, [np.zeros(2)]) for rank in range(2)]
        for number in range(3):
            if number == 1:
                groups[1].close()  # it has others from now on
            groups[0].ask([1])
            groups[0].rest(60)
            assert caplog.text.count("rank 0 has averaged nothing with rank 1") == number


def test_one_that_is_engaged_is_busy_and_nothing_is_left_open() -> None:
    with serving(2) as ranks:
        groups = [ranks.group(rank, [np.full(2, float(rank))]) for rank in range(2)]
        assert groups[1]._engage(0)
        groups[0].ask([1])
        groups[0].rest(60)
        assert (groups[0].asked, groups[0].refused) == (0, 1)
        groups[1]._release()
        groups[0].ask([1])
        groups[0].rest(60)
        assert groups[0].asked == 1
        given = [np.zeros(2)]
        assert groups[1].take(given) == 1
        assert given[0].tolist() == [0.5, 0.5]
    until(
        lambda: not [each for each in threading.enumerate() if each.name == "farandole-pairs"],
        "the end of threads",
    )
