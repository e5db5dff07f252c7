"""A device that is none: tensors on the CPU count as its memory, and ranks exchange by Gloo instead
of NCCL.

It runs all of ``farandole.torch.device`` but ``cuda.py``, where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed


class Pretend:
    """See ``accelerator.Accelerator``. ``counts``: which tensors are ours. ``calls`` is what was
    asked of us.
    """

    name = "Gloo"
    device = torch.device("cpu")

    def __init__(
        self, identity: str, lack: str = "", counts: Callable[[Any], bool] = lambda tensor: True
    ) -> None:
        self._identity, self._lack, self._counts = identity, lack, counts
        self.calls: list[str] = []

    def owns(self, tensor: Any) -> bool:
        return self._counts(tensor)

    def identity(self) -> str:
        return self._identity

    def count(self) -> int:
        return 1

    def lack(self) -> str:
        return self._lack

    def connect(self, store: Any, rank: int, size: int) -> Any:
        self.calls.append("connect")
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=20)
        return distributed.ProcessGroupGloo(store, rank, size, options)

    def follow(self, work: Any) -> None:
        work.wait()

    def touch(self) -> None:
        self.calls.append("touch")

    def record_event(self) -> Any:
        self.calls.append("record_event")
        return len(self.calls)

    @contextmanager
    def stream(self, events: Any) -> Iterator[None]:
        assert all(self.calls[event - 1] == "record_event" for event in events)
        self.calls.append(f"stream {len(events)}")
        yield
        self.calls.append("left")

    def wait_event(self, events: Any) -> Callable[[], None]:
        self.calls.append("wait_event")
        return lambda: self.calls.append("waited")

    def record_stream(self, tensor: Any) -> None:
        self.calls.append("record_stream")

    def drain(self) -> None:
        self.calls.append("drain")

    def pinned(self, nbytes: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8)


@contextmanager
def pretending(pretend: Pretend) -> Iterator[Pretend]:
    """In this process, tensors that count as the pretended device's take its way."""
    from farandole.core.engine import devices
    from farandole.torch import functions
    from farandole.torch.binding import DTYPES
    from farandole.torch.device.transport import TorchTransport

    binding, factory = functions.anywhere, devices._factories["GPU"]
    honest = binding._accelerator
    devices.register(
        "GPU", lambda host, settings, lost: TorchTransport(host, settings, lost, pretend)
    )
    binding._accelerator = pretend
    plain = type(binding).buffer
    binding.buffer = lambda tensor: (
        (  # type: ignore[method-assign]
            tensor.dtype in DTYPES and binding.elsewhere(tensor, DTYPES[tensor.dtype])
        )
        or plain(binding, tensor)
    )
    try:
        yield pretend
    finally:
        devices.register("GPU", factory)
        binding._accelerator = honest
        del binding.buffer
