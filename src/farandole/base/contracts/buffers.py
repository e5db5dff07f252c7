"""The memory of tensors: how a framework hands it to collectives, and ranks see each other's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from farandole.base.types import Buffer

if TYPE_CHECKING:
    from farandole.base.types import Array


class Binding(Protocol):
    """A framework's side of the collectives."""

    def buffer(self, tensor: Any) -> Buffer:
        """The tensor's memory, flat (``data`` and ``out`` are the same array): zero-copy where its
        layout and device allow it, else a copy on the host. Raises ValueError for what cannot
        cross.

        A binding with a DeviceTransport gives a DeviceBuffer for memory of that device.
        """

    def write_back(self, tensor: Any, buffer: Buffer) -> None:
        """After a collective wrote ``buffer.out``: bring it home, if ``buffer`` had to copy."""

    def tensor(self, array: Array, shape: Sequence[int], like: Any = None) -> Any:
        """A tensor of ``like``'s dtype and device over a flat ``array`` (of the dtype's storage
        type); without ``like`` of the array's own type, on the host.
        """

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """``tensor`` as ``dtype`` (a DType or the framework's own) if it holds floating point
        numbers, else itself.
        """


@runtime_checkable
class PeerMemory(Protocol):
    """A transport on which ranks can see each other's memory."""

    publish_limit: int  # bytes that a rank may publish at once

    def publish(self, word: int, pieces: Sequence[Array]) -> tuple[list[int], list[Array]]:
        """Collective: every rank's ``word`` (64 bits), and its ``pieces`` (1-D, one behind the
        other) as uint8 arrays that begin with them. They may be read until the call after the next
        one. One wait.
        """

    def exchange(self, sends: Sequence[Array], receives: Sequence[Array], largest: int) -> None:
        """``sends[i]`` to rank i, ``receives[i]`` from it: uint8, anywhere, apart from each other.
        All ranks know the ``largest`` part of all in bytes, and have called ``publish`` before.
        """
