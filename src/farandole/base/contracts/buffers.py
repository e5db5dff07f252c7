"""Contracts for tensor memory: how frameworks pass it to collectives, and how ranks share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from farandole.base.types import Buffer

if TYPE_CHECKING:
    from farandole.base.types import Array


class Binding(Protocol):
    """A framework's adapter to the collectives."""

    def buffer(self, tensor: Any) -> Buffer:
        """Return the tensor's memory as a flat buffer.

        The buffer is zero-copy (``data`` and ``out`` are the same array) where the tensor's layout
        and device allow it; otherwise it is a copy on the host. A binding with a DeviceTransport
        returns a DeviceBuffer for memory of that device.

        Raises ValueError if the tensor cannot be sent.
        """

    def write_back(self, tensor: Any, buffer: Buffer) -> None:
        """Copy ``buffer.out`` back to the tensor after a collective, if ``buffer`` is a copy."""

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Any:
        """Return a tensor of ``shape`` over a flat ``array`` of the dtype's storage type.

        The tensor has ``like``'s dtype and device; without ``like``, it has the array's type and is
        on the host.
        """

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """Return ``tensor`` cast to ``dtype`` (a DType or the framework's own) if it is floating
        point, else the tensor itself.
        """


@runtime_checkable
class PeerMemory(Protocol):
    """A transport on which ranks can read each other's memory."""

    publish_limit: int  # maximum number of bytes that a rank may publish at once

    def publish(self, word: int, pieces: Sequence[Array]) -> tuple[list[int], list[Array]]:
        """Share this rank's ``word`` (64 bits) and ``pieces``; return the words and pieces of all
        ranks.

        Collective, with a single wait. ``pieces`` are 1-D and consecutive; each returned uint8
        array begins with one rank's pieces. The arrays are valid until the second following call.
        """

    def exchange(self, sends: Sequence[Array], receives: Sequence[Array], largest: int) -> None:
        """Send ``sends[i]`` to rank i and receive ``receives[i]`` from rank i.

        Arrays are uint8, at any address, without overlap. ``largest`` is the size in bytes of the
        largest part on any rank. Call ``publish`` first.
        """
