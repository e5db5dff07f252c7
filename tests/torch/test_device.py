"""Tensors of a device that is no GPU (``pretend``): what is done with them is the same. On real
ones: ``test_cuda``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import pool
from tests.kits.messages import mentioning, mentions
from tests.run_job import job, stored
from tests.torch.pretend import Pretend, pretending
from tests.torch.test_optimizer import (
    OPTIMIZERS,
    STEPS,
    alone,
    assert_all_close,
    data,
    loss_of,
    net,
    part,
    values,
)
from tests.torch.test_properties import DTYPES, check_moves, check_reductions

torch = pytest.importorskip("torch", reason="torch is not installed")

ALL: Callable[[Any], bool] = lambda tensor: True  # noqa: E731
pytestmark = pytest.mark.slow

WAYS = ["direct", "staged"]


def device_job(
    n: int,
    fn: Callable[[int, Pretend], Any],
    way: str = "direct",
    *,
    counts: Callable[[Any], bool] = ALL,
    **options: Any,
) -> list[Any]:
    """``job``, with ranks that have a device each, or share one: then they go through host
    memory.
    """

    def body(rank: int) -> Any:
        with pretending(Pretend(f"GPU-{rank if way == 'direct' else 0}", counts=counts)) as pretend:
            return fn(rank, pretend)

    return job(n, body, store=True, **options)


@pytest.mark.parametrize(
    ("n", "way", "dtypes"),
    [
        (2, "direct", ["uint8", "int8", "int16", "int32"]),
        (2, "direct", ["int64", "float16", "bfloat16"]),
        (2, "direct", ["float32", "float64", "bool"]),
        (3, "direct", ["int16", "bool"]),
        (2, "staged", ["int16", "bfloat16", "float32", "bool"]),
        (3, "staged", ["float64"]),
    ],
    ids=str,
)
def test_every_operation_on_every_type_and_shape(n: int, way: str, dtypes: list[str]) -> None:
    def check(rank: int, pretend: Pretend) -> None:
        for dtype in dtypes:
            check_reductions(rank, n, dtype)
            check_moves(rank, n, dtype)
        assert ("connect" in pretend.calls) == (way == "direct")

    device_job(n, check, way)


def test_one_rank_needs_nobody() -> None:
    def check(rank: int, pretend: Pretend) -> None:
        for dtype in ("int16", "float16", "bool"):
            check_reductions(0, 1, dtype)
            check_moves(0, 1, dtype)
        assert "connect" not in pretend.calls

    device_job(1, check)


@pytest.mark.parametrize("way", WAYS)
def test_factors(way: str) -> None:
    """Floats are multiplied, integers truncated toward zero, and averages of large integers are
    exact.
    """

    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        sign = torch.tensor([1, -1])
        found = hvd.allreduce((sign * (3 + rank)).to(torch.int16), op=hvd.Average)
        assert (found.tolist(), found.dtype) == ([3, -3], torch.int16)
        large = sign * ((1 << 62) - 1)
        assert hvd.allreduce(large, op=hvd.Average).tolist() == large.tolist()
        # 2 and 2: before the sum
        assert hvd.allreduce(sign * 5, op=hvd.Sum, prescale_factor=0.5).tolist() == [4, -4]
        assert hvd.allreduce(sign * 5, op=hvd.Sum, postscale_factor=0.25).tolist() == [2, -2]
        assert hvd.reducescatter(sign * 5, op=hvd.Sum, prescale_factor=0.5).tolist() == [
            4 if rank == 0 else -4
        ]
        assert hvd.allreduce(sign * 5, op=hvd.Max, prescale_factor=-1.0).tolist() == [-5, 5]
        kept = torch.full((3,), 30000.0, dtype=torch.float16)  # the sum is more than the type holds
        assert hvd.allreduce(kept, op=hvd.Average).tolist() == [30000.0] * 3
        assert hvd.reducescatter(kept, op=hvd.Average).tolist() == [30000.0] * (2 - rank)
        assert kept.tolist() == [30000.0] * 3, "what was given is not written to"
        assert hvd.allreduce(sign.double(), op=hvd.Product, postscale_factor=-0.5).tolist() == [
            -0.5,
            -0.5,
        ]

    device_job(2, check, way)


@pytest.mark.parametrize("way", WAYS)
def test_tensors_in_all_states(way: str) -> None:
    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        with torch.inference_mode():
            made = torch.ones(3)
        assert hvd.allreduce_(made, op=hvd.Average, prescale_factor=2.0).tolist() == [2.0] * 3
        assert hvd.allreduce(
            torch.ones(2, dtype=torch.complex64).conj().imag, op=hvd.Sum
        ).tolist() == [0.0, 0.0]
        turned = torch.arange(6.0).reshape(2, 3).t()
        assert hvd.broadcast_(turned, 0) is turned
        assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]
        parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
        hvd.broadcast_parameters([("p", parameter)], 1)
        assert parameter.tolist() == [1.0, 1.0]
        total = hvd.allreduce(parameter, op=hvd.Sum)
        rows = hvd.allgather(parameter.reshape(1, 2))
        (total.sum() + rows.sum()).backward()
        assert parameter.grad.tolist() == [3.0, 3.0]
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("Adasum", "floating point")):
            hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
        apart = torch.tensor([1.0, 0.0]) if rank else torch.tensor([0.0, 1.0])
        assert hvd.allreduce(apart, op=hvd.Adasum).tolist() == [1.0, 1.0]
        assert (
            hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], op=hvd.Adasum)[1].tolist()
            == [1.0] * 3
        )

    device_job(2, check, way)


# What the ranks agree on.


def agreed(
    n: int, pretend_of: Callable[[int], Pretend], **settings: Any
) -> list[tuple[str, list[str]]]:
    """Per rank: what the first collective gives or raises, and what is logged."""

    def body(rank: int) -> tuple[str, list[str]]:
        import logging

        import farandole.torch as hvd

        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("farandole")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            with pretending(pretend_of(rank)) as pretend:
                try:
                    said = str(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
                except hvd.HorovodInternalError as error:
                    said = f"{type(error).__name__}: {error}"
                    with pytest.raises(hvd.HorovodInternalError):
                        hvd.allgather(torch.ones(1))
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n, "the engine goes on"
            assert pretend.calls.count("connect") <= 1
            return said, [line for line in lines if "GPU" in line]
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    return job(n, body, store=True, **settings)


OWN = "GPUs exchange by Gloo: every rank has a GPU of its own"
SHARED = "GPUs exchange through host memory: ranks 0 and 2 share GPU-0"
NONE = "GPUs exchange through host memory: rank 1 has no CUDA GPU"


@pytest.mark.parametrize(
    ("pretend_of", "settings", "says"),
    [
        (lambda rank: Pretend(f"GPU-{rank}"), {}, OWN),
        (lambda rank: Pretend(f"GPU-{rank % 2}"), {}, SHARED),
        (lambda rank: Pretend(f"GPU-{rank}", "no CUDA GPU" if rank == 1 else ""), {}, NONE),
        (
            lambda rank: Pretend(f"GPU-{rank}"),
            {"nccl": "off"},
            "GPUs exchange through host memory: rank 0 has --nccl=off",
        ),
        (lambda rank: Pretend(f"GPU-{rank}"), {"nccl": "on"}, OWN),
    ],
    ids=["own", "shared", "none", "off", "on"],
)
def test_what_ranks_agree_on_is_told_once(
    pretend_of: Any, settings: dict[str, Any], says: str
) -> None:
    first, *others = agreed(3, pretend_of, **settings)
    assert first == ("3.0", [says])
    assert others == [("3.0", [])] * 2


def test_an_impossible_setting_fails_on_all_ranks() -> None:
    for said, _ in agreed(2, lambda rank: Pretend("GPU-7"), nccl="on"):
        assert said.startswith(
            "RequestError: --nccl=on (FARANDOLE_NCCL), but GPUs cannot exchange directly, by Gloo: "
        )
        assert "ranks 0 and 1 share GPU-7" in said
        assert "torch.cuda.set_device(hvd.local_rank())" in said


def test_one_rank_that_insists_gets_a_group() -> None:
    assert agreed(1, lambda rank: Pretend("GPU-0"), nccl="on") == [("1.0", [OWN])]


def test_ranks_that_mean_different_devices_are_told() -> None:
    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        mine = torch.ones(2, dtype=torch.float64 if rank else torch.float32)
        pretend._counts = lambda tensor: rank == 0
        text = mentioning("Mismatched ALLREDUCE", "device GPU", "device CPU")
        with pytest.raises(hvd.HorovodInternalError, match=text):
            hvd.allreduce(torch.ones(2), name="x")
        pretend._counts = ALL
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("Mismatched", "data types")):
            hvd.allreduce(mine, name="y")
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]

    device_job(2, check)


# Order on the device.


def test_what_the_device_is_told_and_in_which_order() -> None:
    """An event behind what was computed, the stream after the event, and what comes later after the
    stream.
    """

    def check(rank: int, pretend: Pretend) -> list[str]:
        import farandole.torch as hvd

        hvd.allreduce(torch.ones(1))
        del pretend.calls[:]
        handle = hvd.allreduce_async(torch.ones(1))
        assert pretend.calls[:2] == ["touch", "record_event"]
        other = threading.Thread(target=lambda: hvd.synchronize(handle))
        other.start()
        other.join()
        return list(pretend.calls)

    for calls in device_job(2, check):
        assert calls == [
            "touch",
            "record_event",
            "stream 1",
            "wait_event",
            "left",
            "waited",
            "record_stream",
        ]


def test_what_cannot_be_marked_is_not_submitted() -> None:
    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd
        from farandole.errors import RequestError
        from farandole.torch.device.cuda import CAPTURED

        def refuse() -> None:
            raise RequestError(CAPTURED)

        pretend.record_event = refuse  # type: ignore[method-assign]
        with pytest.raises(hvd.HorovodInternalError, match=mentioning("CUDA graph")):
            hvd.allreduce(torch.ones(1), name="x")
        del pretend.record_event
        assert hvd.allreduce(torch.ones(1), name="x").item() == 1.0

    device_job(2, check)


def test_groups_with_members_on_several_devices() -> None:
    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        tensors = [torch.full((1 + rank,), number, dtype=kind) for number, kind in enumerate(kinds)]
        for number, found in enumerate(hvd.grouped_allgather(tensors)):
            assert (found.tolist(), found.dtype) == ([number] * 3, kinds[number])
        for found in hvd.grouped_allreduce([tensor[:1] for tensor in tensors], op=hvd.Sum):
            assert found.dtype in kinds
        assert any(call == "stream 1" for call in pretend.calls)

    kinds = [torch.float32, torch.float64, torch.int64, torch.float64, torch.float32]
    device_job(2, check, counts=lambda tensor: tensor.dtype is torch.float64)


# Process sets, and ranks that have joined.


@pytest.mark.parametrize("way", WAYS)
def test_process_sets(way: str) -> None:
    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        some = hvd.add_process_set([0, 2])
        for _ in range(2):
            if some.included():
                assert hvd.allreduce(
                    torch.full((2,), float(rank)), op=hvd.Sum, process_set=some
                ).tolist() == [2.0, 2.0]
                assert (
                    hvd.broadcast(torch.full((1,), float(rank)), 2, process_set=some).item() == 2.0
                )
            assert hvd.allreduce(torch.full((1,), float(rank)), op=hvd.Sum).item() == 3.0
        assert hvd.remove_process_set(some)
        assert hvd.allgather(torch.full((1,), rank)).tolist() == [0, 1, 2]
        if way == "direct":
            assert pretend.calls.count("connect") == 1 + (rank != 1)

    device_job(3, check, way, dynamic_process_sets=True)


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_have_joined_change_nothing(way: str) -> None:
    """Rank 1 has nothing but host arrays that stand in; it may be the first thing it hears of the
    device.
    """

    def check(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        if rank == 0:
            for dtype in DTYPES:
                kind = getattr(torch, dtype)
                mine = torch.ones(3).to(kind)
                for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
                    assert hvd.allreduce(mine, op=op).tolist() == mine.tolist(), (dtype, op)
                if dtype.startswith("float"):
                    assert hvd.allreduce(-mine, op=hvd.Average).tolist() == [-0.5] * 3
                    assert hvd.allreduce(-mine, op=hvd.Adasum).tolist() == (-mine).tolist()
                    one, two = hvd.grouped_allreduce([mine, mine * 2], op=hvd.Sum)
                    assert (one + two).tolist() == [3.0] * 3
        assert hvd.join() == 0
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0

    device_job(2, check, way)


# Training.


HALF: Callable[[Any], bool] = lambda tensor: tensor.dim() != 1  # noqa: E731  weights, but not biases


@pytest.mark.parametrize("counts", [ALL, HALF], ids=["device", "mixed"])
@pytest.mark.parametrize("way", WAYS)
def test_training(way: str, counts: Callable[[Any], bool]) -> None:
    variants: list[tuple[str, dict[str, Any]]] = [
        ("momentum", {"groups": 2}),
        ("adam", {"backward_passes_per_step": 2}),
        ("sgd", {"gradient_predivide_factor": 2.0}),
    ]

    def train(rank: int, pretend: Pretend) -> list[Any]:
        import farandole.torch as hvd

        found = []
        for name, options in variants:
            model = net()
            optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](model.parameters()), **options)
            passes = options.get("backward_passes_per_step", 1)
            for step in range(STEPS):
                optimizer.zero_grad()
                for _ in range(passes):
                    (loss_of(model, *part(rank, 2, *data(step))) / passes).backward()
                optimizer.step()
            found.append(values(model))
        streams = {call for call in pretend.calls if call.startswith("stream")}
        assert streams, "the device was left out"
        assert "stream 0" not in streams, (
            "each waits for the events of its buckets; several may travel together"
        )
        return found

    results = device_job(2, train, way, counts=counts, bucket_bytes=256)
    for number, (name, _) in enumerate(variants):
        assert_all_close([result[number] for result in results], alone(OPTIMIZERS[name]))


@pytest.mark.parametrize("way", WAYS)
def test_training_in_special_ways(way: str) -> None:
    """Compression, parameters that are not used, clipping, sums, sparse gradients, Adasum, and
    state from the root.
    """

    def train(rank: int, pretend: Pretend) -> list[Any]:
        import farandole.torch as hvd

        found = []
        for options in ({"compression": hvd.Compression.bf16}, {"op": hvd.Sum}, {"op": hvd.Adasum}):
            model = net()
            if rank:
                for parameter in model.parameters():
                    parameter.data.fill_(7)
            plain = OPTIMIZERS["adam"](model.parameters())
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(plain, root_rank=0)
            optimizer = hvd.DistributedOptimizer(
                plain, named_parameters=model.named_parameters(), **options
            )
            for step in range(STEPS):
                optimizer.zero_grad(set_to_none=bool(step % 2))
                loss_of(model, *part(rank, 2, *data(step)), side=bool(rank) and step < 2).backward()
                if options.get("op") == hvd.Adasum:
                    optimizer.step()
                    continue
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with optimizer.skip_synchronize():
                    optimizer.step()
            found.append(values(model))
        table = torch.nn.Embedding(6, 2, sparse=True)
        torch.nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), op=hvd.Sum
        )
        table(torch.tensor([rank, 3])).sum().backward()
        optimizer.step()
        assert table.weight[:, 0].tolist() == [0, 0, 1, -1, 1, 1]
        return found

    one, two = device_job(2, train, way)
    for first, second in zip(one, two, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_parameters_on_different_devices_are_reported() -> None:
    def train(rank: int, pretend: Pretend) -> None:
        import farandole.torch as hvd

        pretend._counts = lambda tensor: rank == 0
        model = net()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
        with pytest.raises(ValueError, match=mentioning("'GPU'", "parameters")):
            loss_of(model, *data()).backward()
        del optimizer

    device_job(2, train)


# Peers that die.


def killed(
    n: int, fn: Callable[[Any, Pretend], Any], pretend_of: Callable[[int], Pretend], wire: str = ""
) -> Any:
    """``fn(engine, pretend)`` on all ranks, some of which kill themselves; rank 0's result."""

    def body(transport: Any) -> Any:
        from farandole.job import context
        from farandole.job.config import Connection, Placement, Settings
        from farandole.job.context import lifecycle

        import farandole.torch  # noqa: F401  isort: skip

        placement = Placement(rank=transport.rank, size=n, local_rank=transport.rank, local_size=n)
        lifecycle.enter(placement, Settings(), transport, Connection())
        with pretending(pretend_of(transport.rank)) as pretend:
            try:
                return fn(transport.rank, pretend)
            finally:
                context.shutdown()

    with stored() as having:
        results = pool.procs(n, having(body), wire=wire, deaths=True)
    assert results[1] == pool.Died(-signal.SIGKILL)
    return results[0]


class Dies(Pretend):
    """Ends its process when it is on the stream for the second time: when all ranks have agreed on
    a collective.
    """

    streams = 0

    def stream(self, events: Any) -> Any:
        self.streams += 1
        if self.streams == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().stream(events)


class MeetsLate(Pretend):
    """As NCCL does, it goes to the store when there is a collective, and torch's own code has it,
    which does not keep Python's objects alive.
    """

    def connect(self, store: Any, rank: int, size: int) -> Any:
        self.store, self.key = torch.distributed.PrefixStore("late", store), f"rank {rank}"
        return super().connect(store, rank, size)

    def follow(self, work: Any) -> None:
        self.store.set(self.key, "here")
        assert self.store.get(self.key) == b"here"
        super().follow(work)


class Hangs(Pretend):
    """A device on which a collective ends only when all ranks do it, or when it is given up."""

    def __init__(self, identity: str, *, blocks: bool) -> None:
        super().__init__(identity)
        self.blocks = blocks
        self.given_up = threading.Event()

    def connect(self, store: Any, rank: int, size: int) -> Any:
        return _Backend(super().connect(store, rank, size), self)

    def follow(self, work: Any) -> None:
        if work is not None:
            work.wait()


class _Backend:
    """Told of a second collective, it either blocks the thread (as NCCL does while it connects), or
    the device.
    """

    def __init__(self, backend: Any, hangs: Hangs) -> None:
        self._backend, self._hangs, self._count = backend, hangs, 0

    def allreduce(self, tensors: Any, options: Any) -> Any:
        self._count += 1
        if self._count < 3:  # one to connect, one that goes well
            return self._backend.allreduce(tensors, options)
        if self._hangs.blocks:
            assert self._hangs.given_up.wait(60)
            raise RuntimeError("the communicator was aborted")
        return None

    def abort(self) -> None:
        self._hangs.calls.append("abort")
        self._hangs.given_up.set()
        self._backend.abort()

    def shutdown(self) -> None:
        raise AssertionError("what was given up is not ended in order")


def survived(rank: int, pretend: Pretend) -> tuple[str, list[str]]:
    """What the collective in which a peer dies raises; or the one after it, when the device would
    have waited.
    """
    import farandole.torch as hvd

    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3

    def collectives() -> None:
        hvd.allreduce(torch.ones(3), op=hvd.Sum, name="the last")
        assert isinstance(pretend, Hangs)
        assert pretend.given_up.wait(60), "nobody has noticed"
        hvd.allreduce(torch.ones(3), name="another")

    with pytest.raises(hvd.HorovodInternalError) as caught:
        collectives()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(3), name="one more")
    return f"{type(caught.value).__name__} {caught.value.rank}: {caught.value}", pretend.calls


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_dies_in_a_collective_is_named(way: str, wire: str) -> None:
    said, _ = killed(
        2,
        survived,
        lambda rank: (Dies if rank else Pretend)(f"GPU-{rank * (way == 'direct')}"),
        wire,
    )
    assert said.startswith("PeerLostError 1: rank 1 ")


@pytest.mark.parametrize("wire", ["shm", "tcp"])
@pytest.mark.parametrize("blocks", [True, False], ids=["thread", "device"])
def test_what_would_wait_for_a_dead_peer_for_ever_is_given_up(blocks: bool, wire: str) -> None:
    said, calls = killed(
        2, survived, lambda rank: Dies("GPU-1") if rank else Hangs("GPU-0", blocks=blocks), wire
    )
    assert said.startswith("PeerLostError 1: rank 1 ")
    assert calls.count("abort") == 1


def test_a_device_that_fails_on_one_rank_fails_everywhere() -> None:
    def check(rank: int, pretend: Pretend) -> str:
        import farandole.torch as hvd

        hvd.allreduce(torch.ones(1))
        if rank:
            pretend.wait_event = lambda events: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(hvd.HorovodInternalError) as caught:
            [hvd.allreduce(torch.ones(1), name=f"{number}") for number in range(3)]
        return str(caught.value)

    for said in device_job(2, check):
        assert mentions(said, "rank 1", "ZeroDivisionError")


def test_ranks_that_cannot_be_connected_are_told_what_to_do() -> None:
    def check(rank: int, pretend: Pretend) -> str:
        import farandole.torch as hvd

        def connect(*_: Any) -> Any:
            raise RuntimeError("unhandled system error")

        pretend.connect = connect  # type: ignore[method-assign]
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(1))
        return str(caught.value)

    for said in device_job(2, check):
        assert mentions(said, "GPUs", "--nccl=off", "FARANDOLE_NCCL=off")


# Parts.


def test_the_store_is_there_as_long_as_the_group() -> None:
    def body(rank: int) -> None:
        import gc

        import farandole.torch as hvd

        with pretending(MeetsLate(f"GPU-{rank}")):
            for _ in range(2):
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0
                gc.collect()

    job(2, body, store=True)


def test_that_ranks_share_a_device_for_no_reason_is_a_pity() -> None:
    from farandole.torch.device.agreement import View, decide

    shared = [View("GPU-0", "", "auto", 2)] * 2
    assert decide(shared, "NCCL").pity
    assert "ranks 0 and 1 share GPU-0, though 2 GPUs are there" in decide(shared, "NCCL").why
    assert not decide([view._replace(devices=1) for view in shared], "NCCL").pity
    assert not decide([*shared, View("", "no CUDA GPU", "auto", 2)], "NCCL").pity
    assert decide([View("GPU-0", "", "auto", 2), View("GPU-1", "", "auto", 2)], "NCCL").direct


def test_scaling_into_integers_truncates() -> None:
    from farandole.base.types import DType
    from farandole.torch.device.native import scale_into

    rng = np.random.default_rng(0)
    given = torch.from_numpy(rng.integers(-(1 << 62), 1 << 62, 1000))
    for divisor in (1, 2, 3, 7, -3):
        out = torch.empty_like(given)
        scale_into(out, given, DType.INT64, 1.0 / divisor)
        assert out.tolist() == [
            abs(each) // abs(divisor) * (1 if each * divisor > 0 else -1) for each in given.tolist()
        ]
    out = torch.empty(3, dtype=torch.int32)
    scale_into(out, torch.tensor([3, -3, 100]), DType.INT32, 2.5)
    assert out.tolist() == [7, -7, 250]


def test_buffers_of_the_host_and_of_the_device_binding() -> None:
    from farandole.torch import functions

    with pretending(Pretend("GPU-0")):
        assert type(functions.binding.buffer(torch.ones(2)).data) is np.ndarray
        buffer = functions.anywhere.buffer(torch.ones(2, 3))
        assert (buffer.device, tuple(buffer.data.shape)) == ("GPU", (6,))
        assert buffer.with_new_out().out.data_ptr() != buffer.data.data_ptr()
    assert functions.anywhere.buffer(torch.ones(2)).device == "CPU"
    assert functions.anywhere.device(torch.ones(2)) == "CPU"


class _Stream:
    """Notes in ``said`` what it is told."""

    def __init__(self, number: int, said: list[str]) -> None:
        self.cuda_stream, self._said = number, said

    def record_event(self) -> str:
        self._said.append(f"{self.cuda_stream} records")
        return f"an event of {self.cuda_stream}"

    def wait_event(self, event: str) -> None:
        self._said.append(f"{self.cuda_stream} waits for {event}")


def test_streams_wait_for_each_other_as_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams compute, ours waits for both; then both wait for ours, and so does a third that
    goes on.
    """
    from contextlib import nullcontext

    from farandole.errors import RequestError
    from farandole.torch.device.cuda import Cuda

    said: list[str] = []
    streams = [_Stream(number, said) for number in range(4)]
    current, capturing = streams[1], False
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: current.cuda_stream, raising=False
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: streams[0])
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    cuda = Cuda()
    cuda.touch()
    current = streams[2]
    event = cuda.record_event()
    assert said == ["1 records", "2 records"]
    del said[:]
    with cuda.stream([event]):
        after = cuda.wait_event([event])
    assert said == ["0 waits for an event of 1", "0 waits for an event of 2", "0 records"]
    del said[:]
    current = streams[3]
    after()
    assert sorted(said) == [f"{number} waits for an event of 0" for number in (1, 2, 3)]
    del said[:]
    cuda.record_event()
    assert said == ["3 records"], "what was marked is marked"
    capturing = True
    with pytest.raises(RequestError, match=mentioning("captured")):
        cuda.record_event()


def test_the_device_group_never_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from contextlib import nullcontext
    from types import SimpleNamespace

    from farandole.torch.device.cuda import Cuda

    class Group:
        class Options:
            _timeout = None

        def __init__(self, *given: Any) -> None:
            self.given, self.blocking = given, os.environ["TORCH_NCCL_BLOCKING_WAIT"]

    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    cuda = Cuda()
    group = cuda.connect("a store", 1, 2)
    assert (group.given[:3], group.blocking) == (("a store", 1, 2), "1")
    assert group.given[3]._timeout.total_seconds() == 30
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ
    assert cuda.lack() == ""
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"of {device}")
    )
    assert cuda.identity() == "GPU-of cuda:3"
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    assert ":3 of " in cuda.identity()
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert cuda.lack() == "a torch without NCCL"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.lack() == "no CUDA GPU"


def test_a_variable_is_set_for_a_moment() -> None:
    from farandole.torch.device.cuda import _variable

    name = "FARANDOLE_TEST_VARIABLE"
    with _variable(name, "1"):
        assert os.environ[name] == "1"
        with _variable(name, "2"):
            assert os.environ[name] == "1", "what is set wins"
    assert name not in os.environ


def test_an_encrypted_rank_does_not_exchange_directly() -> None:
    from farandole.core.transports import shm
    from farandole.torch.device.agreement import decide, views

    bar = "--tls, and other hosts to reach, to which NCCL would send in clear"
    found = views(shm.connect(0, 1, "", "bar"), Pretend("GPU-0"), "auto", bar)  # type: ignore[arg-type]
    assert decide(found, "NCCL")[:2] == (False, f"rank 0 has {bar}")
    assert bar in decide([view._replace(wish="on") for view in found], "NCCL").refused
