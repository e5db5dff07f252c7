"""Pushes compressed by a codec, over real sockets, in threads of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.base.contracts import PushCodec
from farandole.core.ps.client import CentreClient, Servers
from farandole.core.ps.clocks import Rule
from farandole.core.ps.group import CentreGroup, facts
from farandole.core.ps.layout import PIECE, Piece, shape_of
from farandole.errors import WireError
from farandole.strategies.codecs import codec
from tests.core.ps.test_server import serving
from tests.kits.messages import mentioning

SHAPES = [(3, 4), (1,), (0,), (1100, 1000)]  # of the last there are two pieces
BOUND = 3.0  # of ``threshold``: each number goes its own way, whichever server it is at


def coded(spec: str) -> PushCodec:
    found = codec(spec)
    assert isinstance(found, PushCodec)
    return found


def group_of(
    servers: Servers,
    n: int,
    rule: Rule,
    own: list[Any],
    by: PushCodec | None,
    statistics: list[Any] | None = None,
) -> CentreClient:
    names = [f"w{number}" for number in range(len(own))]
    return servers.group("test.weights.1", range(n), rule, "spec", own, names, statistics or [], by)


def zeros() -> list[Any]:
    return [np.zeros(shape, "f4" if place % 2 else "f8") for place, shape in enumerate(SHAPES)]


def way(rank: int, step: int) -> list[Any]:
    """Return small integers, whose sums are exact."""
    rng = np.random.default_rng([rank, step])
    return [rng.integers(-2, 3, zero.shape).astype(zero.dtype) for zero in zeros()]


def model(n: int, steps: int) -> tuple[list[Any], list[list[Any]]]:
    """Return the model of synchronous ranks: the centre, and the residual of each rank."""
    centre, unsent = zeros(), [zeros() for _ in range(n)]
    for step in range(steps):
        sums = zeros()
        for rank in range(n):
            for place, change in enumerate(way(rank, step)):
                value = unsent[rank][place] + change
                sent = np.where(np.abs(value) >= BOUND, value, 0).astype(value.dtype)
                unsent[rank][place] = value - sent
                sums[place] = sums[place] + sent
        for place, total in enumerate(sums):
            centre[place] = centre[place] + total * (1.0 / n)
    return centre, unsent


def kept(by: PushCodec, place: int) -> Any:
    """Return the flat residual of a tensor."""
    state = by.state_dict()
    found = [
        state[f"residual/push/0/w{place}/{begin}"]
        for begin in range(0, int(np.prod(SHAPES[place])), PIECE)
    ]
    return np.concatenate([np.zeros(0), *found])


def test_ranks_follow_their_model_when_a_primary_dies() -> None:
    """The replica has the primary's result of the pushes, and each rank has its residual; a flush
    sends it.
    """
    with serving(count=2, replicas=2) as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            by, anchors = coded(f"threshold:{BOUND:g}"), zeros()
            centre = group_of(servers, 3, Rule(sync=True), anchors, by)
            for step in range(4):
                if step == 2 and rank == 0:
                    ranks.servers[1][0].close()
                changes = way(rank, step)
                centre.push(anchors, changes)
                anchors = changes
            unsent = [kept(by, place) for place in range(len(SHAPES))]
            last = zeros()
            centre.flush(anchors, last)
            assert not any(kept(by, place).any() for place in range(len(SHAPES)))
            assert by.saved > 0
            servers.close()
            return anchors, unsent

        wanted, left = model(3, 4)
        for rank, (found, unsent) in enumerate(ranks.run(3, fn)):
            for place, want in enumerate(wanted):
                np.testing.assert_array_equal(found[place], want)
                np.testing.assert_array_equal(unsent[place], left[rank][place].reshape(-1))

        def last(rank: int, servers: Servers) -> Any:
            into = zeros()
            group_of(servers, 3, Rule(sync=True), into, coded(f"threshold:{BOUND:g}")).pull(into)
            return into

        (found,) = ranks.run(1, last)
        for place, total in enumerate(found):
            want = sum(way(rank, step)[place] for rank in range(3) for step in range(4)) / 3
            np.testing.assert_allclose(total, want, atol=1e-5)


def test_a_push_that_arrives_too_late_is_dropped() -> None:
    with serving() as ranks:
        rule, clients = Rule(sync=True, backup=1), [ranks.client(rank) for rank in (0, 1)]
        codecs = [coded("topk:0.5") for _ in clients]
        first, late = (
            group_of(each, 2, rule, [np.zeros(2)], by)
            for each, by in zip(clients, codecs, strict=True)
        )
        first.push([np.zeros(2)], [np.array([1.0, 2.0])])
        assert kept_alone(codecs[0]) == [1.0, 0.0]
        pushed = [np.array([5.0, 4.0])]
        assert late.push([np.zeros(2)], pushed).dropped
        assert pushed[0].tolist() == [0.0, 2.0]
        assert not codecs[1].state_dict()
        assert codecs[1].sent > 0
        for each in clients:
            each.close()


def kept_alone(by: PushCodec) -> list[float]:
    (array,) = by.state_dict().values()
    return list(array)


def test_a_push_that_is_interrupted_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from farandole.core.ps import connection as connection_module
    from farandole.core.ps import server as server_module

    monkeypatch.setattr(server_module, "GRACE", 30.0)
    with serving() as ranks:
        servers, by = ranks.client(0), coded("topk:0.5")
        centre = group_of(servers, 1, Rule(), [np.zeros(2)], by)
        centre.push([np.zeros(2)], [np.array([1.0, 2.0])])
        with monkeypatch.context() as patch:
            patch.setattr(connection_module, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                centre.push([np.zeros(2)], [np.array([3.0, 0.0])])
        assert kept_alone(by) == [1.0, 0.0], "nothing is known of the push"
        into = [np.array([3.0, 0.0])]
        centre.push([np.zeros(2)], into)
        assert into[0].tolist() == [4.0, 2.0]
        assert kept_alone(by) == [0.0, 0.0]
        servers.close()


def interrupted(*args: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupted_late_push_is_late_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The residual would otherwise be all that remains of the rank's changes, which no server has
    counted.
    """
    from farandole.core.ps import connection as connection_module
    from farandole.core.ps import server as server_module

    monkeypatch.setattr(server_module, "GRACE", 30.0)
    with serving() as ranks:
        rule, clients = Rule(sync=True, backup=1), [ranks.client(rank) for rank in (0, 1)]
        codecs = [coded("topk:0.5") for _ in clients]
        first, late = (
            group_of(each, 2, rule, [np.zeros(2)], by)
            for each, by in zip(clients, codecs, strict=True)
        )
        first.push([np.zeros(2)], [np.array([1.0, 2.0])])
        with monkeypatch.context() as patch:
            patch.setattr(connection_module, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                late.push([np.zeros(2)], [np.array([5.0, 4.0])])
        assert late.push([np.zeros(2)], [np.array([5.0, 4.0])]).dropped
        assert not codecs[1].state_dict()
        for each in clients:
            each.close()


def test_statistics_are_whole() -> None:
    with serving(count=2) as ranks:

        def fn(rank: int, servers: Servers) -> Any:
            own, statistics = [np.zeros(4), np.zeros(600, np.float32)], [np.full(3, 0.1 + rank)]
            centre = group_of(servers, 2, Rule(sync=True), own, coded("randomk:0.1"), statistics)
            into = [np.ones(4), np.ones(600, np.float32), *statistics]
            centre.push([*own, *statistics], into)
            return into

        for found in ranks.run(2, fn):
            assert found[2].tolist() == pytest.approx([0.6] * 3)
            assert [np.count_nonzero(each) for each in found[:2]] == [1, 60]


def test_servers_refuse_codecs_they_cannot_unpack() -> None:
    class Own:
        def __init__(self, spec: str) -> None:
            self.spec = spec

    with serving() as ranks:
        for spec, text in (
            ("mine", ("'mine'", "codec")),
            ("sign", "codec='sign'"),
        ):
            with pytest.raises(ValueError, match=mentioning(text)):
                group_of(ranks.client(0), 1, Rule(), [np.zeros(2)], Own(spec))  # type: ignore[arg-type]
    held = facts([0], Rule(), "spec", [], [["<f4", 9], ["<f8", 2]], 1, "topk:0.5")
    group = CentreGroup(held)
    (payload,) = group.payloads([16])
    payload.view(np.uint32)[:] = [1, 9, 0, 0]
    with pytest.raises(WireError, match=mentioning("topk:0.5", "9", "push")):
        group.unpack([payload], group.arrays())
    for wrong in ([], [8, 8], [-1], [True], [1 << 20], ["8"]):
        with pytest.raises(WireError, match=mentioning("payloads", "bytes")):
            group.payloads(wrong)
    with pytest.raises(WireError, match=mentioning("payloads")):
        CentreGroup({**held, "codec": ""}).payloads([16])


def test_pieces_with_whole_rows_are_matrices() -> None:
    assert shape_of(Piece(0, 0, 12), (3, 2, 2)) == (3, 4)
    assert shape_of(Piece(0, 4, 12), (3, 2, 2)) == (2, 4)
    assert shape_of(Piece(0, 4, 10), (3, 2, 2)) == (6,)
    assert shape_of(Piece(0, 2, 6), (3, 2, 2)) == (4,)
    assert shape_of(Piece(0, 0, 5), (5,)) == (5,)
    assert shape_of(Piece(0, 0, 1), ()) == (1,)
