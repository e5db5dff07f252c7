"""The contract for a kind of device. ``Cuda`` is the only implementation; tests have another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Accelerator(Protocol):
    """A kind of device.

    A process uses one device: the first whose tensors are exchanged. Tensors on other devices count
    as foreign. Collectives are queued on a stream of their own, so that the device computes
    meanwhile. Only ``drain`` waits.
    """

    name: str  # the library by which ranks exchange

    @property
    def device(self) -> Any:
        """The torch device of this process."""

    def owns(self, tensor: Any) -> bool:
        """Return whether the tensor is on the process's device."""

    def identity(self) -> str:
        """Return a text that is equal on two ranks if they share a device."""

    def count(self) -> int:
        """Return the number of devices that this rank can choose from."""

    def lack(self) -> str:
        """Return the reason why this rank cannot exchange directly; empty if it can."""

    def connect(self, store: Any, rank: int, size: int) -> Any:
        """Return a private torch.distributed backend that connects the ranks. ``store``: a
        torch.distributed store.
        """

    def follow(self, work: Any) -> None:
        """Make later device work of the calling thread wait for a collective of that backend."""

    def touch(self) -> None:
        """Record that the calling thread has queued device work that the next ``record_event`` must
        cover.
        """

    def record_event(self) -> Any:
        """Record an event. See DeviceTransport. The result is hashable."""

    def stream(self, events: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context whose device work runs on the stream, after the events."""

    def wait_event(self, events: Sequence[Any]) -> Callable[[], None]:
        """Record this point of the stream, on which it is called. Return a function that makes
        later device work of the calling thread wait for it, and also work on the streams from which
        ``events`` came.
        """

    def record_stream(self, tensor: Any) -> None:
        """Record that the calling thread continues with a tensor that was made on the stream."""

    def drain(self) -> None:
        """Wait until the stream is empty."""

    def pinned(self, nbytes: int) -> Any:
        """Return pinned host memory (uint8), which the device copies without the CPU."""
