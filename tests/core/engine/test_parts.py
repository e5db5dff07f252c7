"""The pure parts of the engine: messages, signatures, fusion, factors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.types import DType, Kind, ReduceOp, Request, Response
from farandole.core.engine import wire
from farandole.core.engine.cache import SignatureCache
from farandole.core.engine.check import check
from farandole.core.engine.devices import Devices
from farandole.core.engine.execute import reduction
from farandole.core.engine.fusion import plan
from farandole.core.engine.handle import Handle
from farandole.job.config import Settings
from tests.kits.messages import mentioning

requests = st.builds(
    Request,
    name=st.text(max_size=20),
    kind=st.sampled_from(Kind),
    dtype=st.sampled_from(DType),
    shape=st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple),
    op=st.sampled_from(ReduceOp),
    root=st.integers(0, 100),
    prescale=st.floats(allow_nan=False),
    postscale=st.floats(allow_nan=False),
    device=st.sampled_from(["CPU", "GPU"]),
    splits=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    group=st.text(max_size=5),
    group_size=st.integers(1, 9),
)
serials = st.integers(0, (1 << 64) - 1)


@given(
    st.lists(st.tuples(st.integers(0, (1 << 32) - 1), serials), max_size=9),
    st.lists(st.tuples(requests, serials), max_size=5),
    st.booleans(),
)
def test_messages_survive_the_wire(
    known: list[tuple[int, int]], new: list[tuple[Request, int]], shutdown: bool
) -> None:
    message = wire.decode(wire.encode(known, new, shutdown=shutdown))
    assert message == wire.Post(shutdown, known, new)


def test_only_messages_of_numbers_alone_can_be_remembered() -> None:
    assert wire.signatures(wire.encode([(7, 1)], [])) == wire.signatures(wire.encode([(7, 2)], []))
    assert wire.signatures(wire.encode([(7, 1)], [(Request("x", Kind.BARRIER), 0)])) is None
    assert wire.signatures(wire.encode([(7, 1)], [], shutdown=True)) is None


def test_a_full_cache_is_cleared() -> None:
    cache = SignatureCache(2)
    one, two, three = (Request(name, Kind.ALLREDUCE) for name in "abc")
    cache.learn([one, two, one])
    assert (cache.number(one), cache.number(two), cache.generation) == (0, 1, 0)
    cache.learn([three])
    assert (cache.number(one), cache.number(three), cache.generation) == (None, 0, 1)
    assert cache.request(0) == three


def test_a_cache_without_capacity_learns_nothing() -> None:
    cache = SignatureCache(0)
    cache.learn([Request("a", Kind.ALLREDUCE)])
    assert cache.number(Request("a", Kind.ALLREDUCE)) is None


def _plan(tensors: dict[str, Request], threshold: int) -> list[tuple[str, ...]]:
    responses = [Response(request.kind, (name,), (request,)) for name, request in tensors.items()]
    return [unit.names for unit in plan(responses, tensors.__getitem__, threshold)]


def test_fusion_skips_tensors_that_do_not_fit() -> None:
    sizes = {"a": 10, "b": 100, "c": 10, "d": 10}
    tensors = {name: Request(name, Kind.ALLREDUCE, shape=(size,)) for name, size in sizes.items()}
    assert _plan(tensors, 160) == [("a", "c", "d"), ("b",)]
    assert _plan(tensors, 0) == [("a",), ("b",), ("c",), ("d",)]


def test_fusion_separates_different_requests() -> None:
    base = Request("a", Kind.ALLREDUCE, shape=(4,))
    tensors = {
        "a": base,
        "b": base._replace(dtype=DType.INT32),
        "c": base._replace(op=ReduceOp.MAX),
        "d": base._replace(kind=Kind.BROADCAST),
        "e": base._replace(postscale=2.0),
        "f": base,
    }
    assert _plan(tensors, 1 << 20) == [("a", "f"), ("b",), ("c",), ("d",), ("e",)]


def test_a_group_is_split_by_type_and_operation_only() -> None:
    base = Request("g", Kind.ALLREDUCE, shape=(100,), group="g", group_size=4)
    own = {
        "w": base._replace(op=ReduceOp.MIN),
        "x": base,
        "y": base._replace(dtype=DType.INT32),
        "z": base,
    }
    units = plan([Response(Kind.ALLREDUCE, tuple(own), tuple(own.values()))], own.__getitem__, 10)
    assert [unit.names for unit in units] == [("w",), ("x", "z"), ("y",)]


@pytest.mark.parametrize(
    ("op", "pre", "post", "expected"),
    [
        (ReduceOp.AVERAGE, 1.0, 1.0, (ReduceOp.SUM, 1 / 3)),
        (ReduceOp.SUM, 2.0, 0.5, (ReduceOp.SUM, 1.0)),
        (ReduceOp.MIN, -1.0, 1.0, (ReduceOp.MAX, -1.0)),
        (ReduceOp.MAX, 2.0, 1.0, (ReduceOp.MAX, 2.0)),
        (ReduceOp.PRODUCT, 2.0, 1.0, (ReduceOp.PRODUCT, 8.0)),
    ],
)
def test_factors_fold_into_one(
    op: ReduceOp, pre: float, post: float, expected: tuple[ReduceOp, float]
) -> None:
    assert (
        reduction(Request("x", Kind.ALLREDUCE, op=op, prescale=pre, postscale=post), 3, 3)
        == expected
    )


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            Request("x", Kind.BROADCAST, root=5),
            ("rank 5", "broadcast"),
        ),
        (
            Request("x", Kind.ALLGATHER),
            ("ALLGATHER", "rank-zero"),
        ),
        (
            Request("x", Kind.ALLTOALL, shape=(3,)),
            ("splits", "dimension"),
        ),
        (
            Request("x", Kind.ALLTOALL, shape=(3,), splits=(3,)),
            ("entries", "splits"),
        ),
        (
            Request("x", Kind.ALLTOALL, shape=(3,), splits=(3, 1)),
            ("Sum", "splits"),
        ),
        (Request("x", Kind.ALLTOALL, shape=(3,), splits=(1, 1)), "1 rows"),
        (Request("x", Kind.ALLTOALL, shape=(3,), splits=(4, -1)), ("splits", "negative")),
        (
            Request("x", Kind.REDUCESCATTER, shape=(3,), op=ReduceOp.MAX),
            ("AVERAGE", "SUM"),
        ),
        (
            Request("x", Kind.ALLREDUCE, DType.BOOL, (3,), ReduceOp.AVERAGE),
            ("averages", "bool"),
        ),
    ],
)
def test_requests_that_no_rank_could_run(request_: Request, text: str | tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=mentioning(text)):
        check(request_, 2)


def test_groups_on_two_devices_are_divided() -> None:
    def members(kind: Kind) -> dict[str, Request]:
        devices = ["CPU", "GPU", "CPU"]
        return {
            name: Request(name, kind, device=device)
            for name, device in zip("abc", devices, strict=True)
        }

    own = members(Kind.ALLREDUCE)
    units = plan(
        [Response(Kind.ALLREDUCE, tuple(own), tuple(own.values()))], own.__getitem__, 1 << 20
    )
    assert [unit.names for unit in units] == [("a", "c"), ("b",)]
    own = members(Kind.ALLGATHER)
    parts = ((1, 2), (3, 4), (5, 6))
    units = plan(
        [Response(Kind.ALLGATHER, tuple(own), tuple(own.values()), parts)], own.__getitem__, 1 << 20
    )
    assert [(unit.names, unit.parts) for unit in units] == [
        (("a", "c"), ((1, 2), (5, 6))),
        (("b",), ((3, 4),)),
    ]
    assert all(len({request.device for request in unit.requests}) == 1 for unit in units)
    failed = plan(
        [Response(Kind.ALLGATHER, tuple(own), tuple(own.values()), (), "no")],
        own.__getitem__,
        1 << 20,
    )
    assert [unit.names for unit in failed] == [("a", "b", "c")]


def test_waiting_callers_get_the_cure_for_a_device() -> None:
    calls: list[int] = []

    def after() -> None:
        calls.append(1)

    handle = Handle(3, lambda waiting: None)
    for place in range(3):
        handle.finish(place, place, after if place else None)
    assert not calls
    assert handle.wait() == [0, 1, 2]
    assert handle.wait() == [0, 1, 2]
    assert len(calls) == 2, "once per wait, however many members have it"


def test_memory_of_an_unregistered_device() -> None:
    with pytest.raises(LookupError, match=mentioning("TPU", "collectives")):
        Devices(None, Settings(), lambda error: None).record_event("TPU")  # type: ignore[arg-type]
