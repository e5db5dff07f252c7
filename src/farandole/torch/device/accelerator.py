"""The contract of a kind of device, for the rest of this folder. ``Cuda`` is the one there is;
tests have another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Accelerator(Protocol):
    """A process uses one device of it: the first whose tensors are exchanged. Tensors of others
    count as foreign.

    Collectives are told to the device on a stream of their own, so that it computes meanwhile. Only
    ``drain`` waits.
    """

    name: str  # of what ranks exchange by

    @property
    def device(self) -> Any:
        """The torch device of this process."""

    def owns(self, tensor: Any) -> bool:
        """Is this memory of the process's device?"""

    def identity(self) -> str:
        """The same on two ranks if they share a device."""

    def count(self) -> int:
        """How many devices this rank could choose from."""

    def lack(self) -> str:
        """Why this rank cannot exchange directly; empty if it can."""

    def connect(self, store: Any, rank: int, size: int) -> Any:
        """A torch.distributed backend of our own that joins the ranks; ``store`` is a
        torch.distributed store.
        """

    def follow(self, work: Any) -> None:
        """What the calling thread then tells the device waits for a collective of that backend."""

    def touch(self) -> None:
        """The calling thread has told the device something that the next ``record_event`` must
        stand behind.
        """

    def record_event(self) -> Any:
        """See DeviceTransport. Hashable."""

    def stream(self, events: Sequence[Any]) -> AbstractContextManager[Any]:
        """What the thread tells the device inside is done on the stream, after the events."""

    def wait_event(self, events: Sequence[Any]) -> Callable[[], None]:
        """Called on the stream. Calling the result lets what a thread tells the device later wait
        for this point; also what is told in the places that ``events`` came from.
        """

    def record_stream(self, tensor: Any) -> None:
        """The calling thread goes on with a tensor that was made on the stream."""

    def drain(self) -> None:
        """Wait until the stream is empty."""

    def pinned(self, nbytes: int) -> Any:
        """Host memory (uint8) that the device copies from and to by itself."""
