"""Codecs: reductions and pushes that send less than all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from farandole.base.contracts.wires import Transport
from farandole.base.types import Buffer

if TYPE_CHECKING:
    from farandole.base.types import Array


class Part(NamedTuple):
    """One of the tensors that a codec reduces together.

    ``key``: of the codec's state for the tensor; empty on a rank that has joined, which contributes
    the zeros in ``buffer`` and keeps no state. ``shape``: of the tensor; its memory is flat.
    ``given``: False where this rank has no such tensor now, and contributes zeros; see
    ``Retractable``.
    """

    key: str
    shape: tuple[int, ...]
    buffer: Buffer
    given: bool = True


class Codec(Protocol):
    """Sums tensors over all ranks by sending less than all numbers. One instance on each rank, for
    one optimizer.

    The engine calls the codec that ``Request.codec`` names, on the thread that runs collectives.
    """

    spec: str  # "name" or "name:argument", the same on all ranks
    sent: int  # bytes that this rank has sent so far
    saved: int  # further bytes that an all-reduce without the codec would have sent

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        """Sum each part over the ranks, times ``scale``: read ``data``, write ``out``. Parts have
        one floating point type, and the same shapes on all ranks.

        Results have the same bits on all ranks. A number that is not finite makes the results not
        finite, on all ranks.
        """

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all state: residuals, counts of steps ..."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue bit for bit from ``state_dict``, on the same rank of the same number."""


@runtime_checkable
class Consensus(Protocol):
    """A codec with a consensus step size, for ranks that average with neighbours."""

    def consensus_step(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the consensus step size of CHOCO-SGD for weights of these shapes, above 0 and up
        to 1. It is the smaller, the more the codec leaves out.
        """


@runtime_checkable
class Retractable(Protocol):
    """A codec with residuals or momentum, which may have sent them in vain: for a tensor that no
    rank has given.
    """

    def retract(self, keys: Sequence[str]) -> None:
        """Restore the state of these parts from before the last ``allreduce`` of each: they were
        not ``given`` on any rank.
        """


@runtime_checkable
class Rescaling(Protocol):
    """A codec whose residuals are in the units of its inputs, and can follow a change of them."""

    def rescale(self, keys: Sequence[str], factor: float) -> None:
        """Multiply the state of these keys: from now on, their tensors are ``factor`` times as
        large.
        """


@runtime_checkable
class Voting(Protocol):
    """A codec whose results may be directions without a size."""

    votes: bool


class Packed(NamedTuple):
    """A codec's message for one rank's changes. ``payload``: its bytes, uint8; ``kept``: the codec
    state to adopt once the message has arrived; ``whole``: the number of bytes of the changes.
    """

    payload: Array
    kept: Mapping[str, Array]
    whole: int


@runtime_checkable
class PushCodec(Codec, Protocol):
    """A codec that also compresses one rank's pushes to parameter servers."""

    def pack(self, parts: Sequence[Part], rank: int) -> Packed:
        """Compress the parts' ``data``, with their residuals. Parts have one type, float32 or
        float64. ``rank``: ranks round in different ways.
        """

    def pack_all(self, parts: Sequence[Part]) -> Packed:
        """Pack all of the data and residuals: the numbers themselves, in the type of the parts."""

    def arrived(self, packed: Packed, taken: bool) -> None:
        """Count bytes, and adopt the new state; keep the old state if the push came too late, and
        was not ``taken``.
        """

    def unpack(self, payload: Array, out: Array) -> None:
        """Decode a payload of ``pack`` into ``out`` (flat, as long as all parts together), at the
        server. Uses no state. Raises ValueError or IndexError for a malformed payload.
        """
