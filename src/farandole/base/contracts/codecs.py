"""Codecs: reductions and pushes that send less than all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from farandole.base.contracts.wires import Transport
from farandole.base.types import Buffer

if TYPE_CHECKING:
    from farandole.base.types import Array


class Part(NamedTuple):
    """A tensor among those that a codec reduces as one.

    ``key``: under what the codec keeps its state for it. Empty on a rank that has joined: that one
    takes part with the zeros in ``buffer``, and keeps nothing. ``shape``: the tensor's own; the
    memory is flat. ``given``: False, if there is no such tensor on this rank now, and zeros count;
    see ``Retractable``.
    """

    key: str
    shape: tuple[int, ...]
    buffer: Buffer
    given: bool = True


class Codec(Protocol):
    """Adds up tensors over all ranks by sending less than all of them. One instance on each rank,
    for one optimizer.

    The engine calls it when ranks have agreed to run what ``Request.codec`` names, on the thread
    that runs collectives.
    """

    spec: str  # "name" or "name:argument": what the ranks agree on
    sent: int  # bytes that this rank has sent so far
    saved: int  # bytes that an all-reduce without the codec would have sent more

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        """Add up each part over the ranks, times ``scale``: read ``data``, write ``out``. Parts are
        of one floating point type, with the same shapes on all ranks.

        The same bits on all ranks. A number that is not finite makes the results not finite, on all
        ranks.
        """

    def state_dict(self) -> dict[str, Array]:
        """Copies of everything that later results depend on: residuals, counts of steps ..."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on bit for bit where ``state_dict`` was called, on the same rank of as many."""


@runtime_checkable
class Consensus(Protocol):
    """A codec that says how far ranks may go towards what they hear of their neighbours by it."""

    def consensus_step(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """The consensus step size of CHOCO-SGD for weights of these shapes, above 0 and up to 1:
        the less, the more the codec leaves out.
        """


@runtime_checkable
class Retractable(Protocol):
    """A codec that keeps what it has not sent (or a momentum), and may have sent it in vain: for a
    tensor that no rank has given.
    """

    def retract(self, keys: Sequence[str]) -> None:
        """What was sent of these parts, in the last ``allreduce`` of each, where they were not
        ``given`` on any rank, counts as not sent; what is kept of them is what it was before.
        """


@runtime_checkable
class Rescaling(Protocol):
    """A codec that keeps what it has not sent in the units of what it gets, and can follow
    these.
    """

    def rescale(self, keys: Sequence[str], factor: float) -> None:
        """From now on, numbers of the tensors with these keys are ``factor`` times as large as
        before.
        """


@runtime_checkable
class Voting(Protocol):
    """A codec that says whether its results are directions, without a size."""

    votes: bool


class Packed(NamedTuple):
    """What a codec made of one rank's changes. ``payload``: what travels, uint8; ``kept``: what the
    codec's state has when that has arrived, of which nothing is kept before; ``whole``: bytes of
    the changes themselves.
    """

    payload: Array
    kept: Mapping[str, Array]
    whole: int


@runtime_checkable
class PushCodec(Codec, Protocol):
    """A codec that can also compress what one rank pushes to parameter servers, by itself."""

    def pack(self, parts: Sequence[Part], rank: int) -> Packed:
        """The parts' ``data``, and what is kept of them, as far as they are sent now. Parts are of
        one type, float32 or float64. ``rank``: other ranks round in other ways.
        """

    def pack_all(self, parts: Sequence[Part]) -> Packed:
        """All of that: the payload are the numbers themselves, in the type of the parts."""

    def arrived(self, packed: Packed, taken: bool) -> None:
        """Count bytes, and keep what was not sent; if it was not ``taken``, for it came too late,
        keep what was kept before.
        """

    def unpack(self, payload: Array, out: Array) -> None:
        """At the server: what the payload of ``pack`` stands for, into ``out`` (flat, as long as
        all parts together). Uses no state. Raises ValueError or IndexError for what is no such
        payload.
        """
