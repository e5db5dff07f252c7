"""The contract for a kind of device. ``Cuda`` is the only implementation; tests have another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Accelerator(Protocol):
    """A kind of device.

    A process uses one device: the first whose tensors are exchanged. Tensors on other devices count
    as foreign. Collectives are queued on a separate stream, so the device keeps computing. Only
    ``drain`` blocks.
    """

    name: str  # the library that connects the ranks' devices

    @property
    def device(self) -> Any:
        """The torch device of this process."""

    def owns(self, tensor: Any) -> bool:
        """Return whether the tensor is on the process's device."""

    def identity(self) -> str:
        """Return a string that is equal on ranks that share a device."""

    def count(self) -> int:
        """Return the number of devices visible to this rank."""

    def lack(self) -> str:
        """Return the reason why this rank cannot exchange directly; empty if there is none."""

    def connect(self, store: Any, rank: int, size: int) -> Any:
        """Return a private torch.distributed backend that connects the ranks. ``store``: a
        torch.distributed store.
        """

    def follow(self, work: Any) -> None:
        """Make later device work of the calling thread wait for a collective of the backend."""

    def touch(self) -> None:
        """Record that the calling thread has queued device work that the next ``record_event`` must
        cover.
        """

    def record_event(self) -> Any:
        """Record an event. See DeviceTransport. The result is hashable."""

    def stream(self, events: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context whose device work runs on the stream, after the events."""

    def wait_event(self, events: Sequence[Any]) -> Callable[[], None]:
        """Record an event on the current stream. Return a function that makes later device work
        wait for it, on the calling thread's stream and on the streams of ``events``.
        """

    def record_stream(self, tensor: Any) -> None:
        """Record that the calling thread uses a tensor created on the stream."""

    def drain(self) -> None:
        """Wait until the stream is empty."""

    def pinned(self, nbytes: int) -> Any:
        """Return pinned host memory (uint8), which the device copies without using the CPU."""
