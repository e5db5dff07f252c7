"""Tensors of a simulated device (``pretend``), on the same code as a GPU's. ``test_cuda`` uses real
ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.torch.device_jobs import ALL, WAYS, device_job
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
pytestmark = pytest.mark.slow


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


def test_one_rank_needs_no_network() -> None:
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


def test_device_calls_come_in_order() -> None:
    """An event after the computation, the stream after the event, and later work after the stream."""

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


def test_tensors_without_an_event_are_not_submitted() -> None:
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
    """Rank 1 only has host arrays as substitutes; it may not have used the device before."""

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
    """Compression, unused parameters, clipping, sums, sparse gradients, Adasum, and state from the
    root.
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
