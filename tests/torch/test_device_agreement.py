"""The ranks' agreement about their devices, and the order of their streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job
from tests.torch.device_jobs import ALL, device_job
from tests.torch.pretend import Pretend, pretending

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow


def agreed(
    n: int, pretend_of: Callable[[int], Pretend], **settings: Any
) -> list[tuple[str, list[str]]]:
    """Return, for each rank, the result or error of the first collective, and the log."""

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


OWN = "GPUs exchange by Gloo: every rank has its own GPU"
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
def test_the_agreed_device_path_is_logged_once(
    pretend_of: Any, settings: dict[str, Any], says: str
) -> None:
    first, *others = agreed(3, pretend_of, **settings)
    assert first == ("3.0", [says])
    assert others == [("3.0", [])] * 2


def test_an_impossible_setting_fails_on_all_ranks() -> None:
    for said, _ in agreed(2, lambda rank: Pretend("GPU-7"), nccl="on"):
        assert mentions(said, "RequestError", "--nccl=on", "FARANDOLE_NCCL", "Gloo")
        assert "ranks 0 and 1 share GPU-7" in said
        assert "torch.cuda.set_device(hvd.local_rank())" in said


def test_one_rank_that_insists_gets_a_group() -> None:
    assert agreed(1, lambda rank: Pretend("GPU-0"), nccl="on") == [("1.0", [OWN])]


def test_ranks_with_different_devices_are_reported() -> None:
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


class MeetsLate(Pretend):
    """Like NCCL, it connects to the store in the first collective, in torch's own code, which does
    not keep Python's objects alive.
    """

    def connect(self, store: Any, rank: int, size: int) -> Any:
        self.store, self.key = torch.distributed.PrefixStore("late", store), f"rank {rank}"
        return super().connect(store, rank, size)

    def follow(self, work: Any) -> None:
        self.store.set(self.key, "here")
        assert self.store.get(self.key) == b"here"
        super().follow(work)


def test_the_store_lives_as_long_as_the_group() -> None:
    def body(rank: int) -> None:
        import gc

        import farandole.torch as hvd

        with pretending(MeetsLate(f"GPU-{rank}")):
            for _ in range(2):
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2.0
                gc.collect()

    job(2, body, store=True)


def test_needlessly_shared_devices_are_avoidable() -> None:
    from farandole.torch.device.agreement import View, decide

    shared = [View("GPU-0", "", "auto", 2)] * 2
    assert decide(shared, "NCCL").avoidable
    assert mentions(decide(shared, "NCCL").why, "ranks 0 and 1", "GPU-0", "2 GPUs")
    assert not decide([view._replace(devices=1) for view in shared], "NCCL").avoidable
    assert not decide([*shared, View("", "no CUDA GPU", "auto", 2)], "NCCL").avoidable
    assert decide([View("GPU-0", "", "auto", 2), View("GPU-1", "", "auto", 2)], "NCCL").direct


class _Stream:
    """A stream that records its calls in ``said``."""

    def __init__(self, number: int, said: list[str]) -> None:
        self.cuda_stream, self._said = number, said

    def record_event(self) -> str:
        self._said.append(f"{self.cuda_stream} records")
        return f"an event of {self.cuda_stream}"

    def wait_event(self, event: str) -> None:
        self._said.append(f"{self.cuda_stream} waits for {event}")


def test_streams_wait_for_each_other_as_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams compute, and the stream of collectives waits for both; then both wait for it, and
    a third, too.
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
    assert cuda.lack() == "a torch build without NCCL"
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
