"""CUDA, and ROCm, which torch exposes under the same names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from farandole.base.host import boot_id
from farandole.errors import RequestError

# for aborting hung operations; a collective may take any time
_PATIENCE = timedelta(seconds=30)
CAPTURED = (
    "collectives cannot be captured in a CUDA graph, because ranks agree on the host before they"
    " run. Call them before or after the captured part"
)


class Cuda:
    """CUDA devices. See ``accelerator.Accelerator``."""

    name = "NCCL"

    def __init__(self) -> None:
        self._home: Any = None
        self._stream: Any = None
        self._touched = threading.local()  # streams that this thread has used since its last event

    @property
    def device(self) -> Any:
        if self._home is None:
            self._home = torch.device("cuda", torch.cuda.current_device())
        return self._home

    def owns(self, tensor: Any) -> bool:
        if not tensor.is_cuda:
            return False
        if self._home is None:
            self._home = tensor.device
        return bool(tensor.device == self._home)

    def identity(self) -> str:
        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        if uuid is not None:
            return f"GPU-{uuid}"
        # older torch: the GPU's number on this host
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return f"GPU {visible}:{self.device.index} of {boot_id()}"

    def count(self) -> int:
        return int(torch.cuda.device_count())

    def lack(self) -> str:
        if not torch.cuda.is_available():
            return "no CUDA GPU"
        return (
            ""
            if distributed.is_available() and distributed.is_nccl_available()
            else "a torch build without NCCL"
        )

    def connect(self, store: Any, rank: int, size: int) -> Any:
        """Return a private NCCL group, independent of the program's: nothing is registered with
        torch.distributed.

        The group is configured for blocking waits, which never occur: otherwise torch starts
        threads that end the process when a peer is lost. The engine detects the loss itself, and
        survivors continue.
        """
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = _PATIENCE
        with torch.cuda.device(self.device), _variable("TORCH_NCCL_BLOCKING_WAIT", "1"):
            return distributed.ProcessGroupNCCL(store, rank, size, options)

    def follow(self, work: Any) -> None:
        # The stream waits, not this thread: ``work.wait()`` would block the thread (see
        # ``connect``).
        work.get_future().wait()

    # Streams.

    def touch(self) -> None:
        raw = torch._C._cuda_getCurrentRawStream(self.device.index)
        streams = self._streams()
        if raw not in streams:
            streams[raw] = torch.cuda.current_stream(self.device)

    def record_event(self) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise RequestError(CAPTURED)
        self.touch()
        streams, self._touched.streams = self._touched.streams, {}
        return tuple((stream, stream.record_event()) for stream in streams.values())

    @contextmanager
    def stream(self, events: Sequence[Any]) -> Iterator[None]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._stream):
            for recorded in events:
                for _, event in recorded:
                    self._stream.wait_event(event)
            yield

    def wait_event(self, events: Sequence[Any]) -> Callable[[], None]:
        event, device = self._stream.record_event(), self.device
        recorded = [stream for pairs in events for stream, _ in pairs]

        def wait() -> None:
            # Include the streams of the events: memory allocated on them may be freed from now on
            # and reused on them.
            for stream in {
                used.cuda_stream: used for used in (torch.cuda.current_stream(device), *recorded)
            }.values():
                stream.wait_event(event)

        return wait

    def record_stream(self, tensor: Any) -> None:
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def drain(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def pinned(self, nbytes: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def _streams(self) -> dict[int, Any]:
        if not hasattr(self._touched, "streams"):
            self._touched.streams = {}
        found: dict[int, Any] = self._touched.streams
        return found


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, unless the user has, while torch reads it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
