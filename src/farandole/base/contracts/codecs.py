"""Contracts for codecs: reductions and pushes that compress their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from farandole.base.contracts.wires import Transport
from farandole.base.types import Buffer

if TYPE_CHECKING:
    from farandole.base.types import Array


class Part(NamedTuple):
    """One of the tensors that a codec reduces together.

    - ``key``: The key of the codec's state for this tensor. It is empty on a rank that has joined:
      such a rank contributes the zeros in ``buffer`` and keeps no state.
    - ``shape``: The tensor's shape; its memory is flat.
    - ``given``: False if this rank has no such tensor now and contributes zeros; see
      ``Retractable``.
    """

    key: str
    shape: tuple[int, ...]
    buffer: Buffer
    given: bool = True


class Codec(Protocol):
    """Sums tensors over all ranks in compressed form.

    Each rank has one instance per optimizer. The engine calls the codec that ``Request.codec``
    names, on the thread that runs collectives.
    """

    spec: str  # "name" or "name:argument", the same on all ranks
    sent: int  # bytes sent by this rank so far
    saved: int  # further bytes that an uncompressed allreduce would have sent

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        """Sum each part over the ranks and multiply it by ``scale``: read ``data``, write ``out``.

        All parts have one floating-point type, and the same shapes on all ranks. Results are
        bitwise identical on all ranks. A non-finite input makes the results non-finite on all
        ranks.
        """

    def state_dict(self) -> dict[str, Array]:
        """Return a copy of the complete state: residuals, step counts, etc."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore the state from ``state_dict``, so that training continues bit for bit. The state
        must come from the same rank.
        """


@runtime_checkable
class Consensus(Protocol):
    """A codec with a consensus step size, for ranks that average with neighbours."""

    def consensus_step(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the consensus step size of CHOCO-SGD for weights of these shapes, in (0, 1].

        The more the codec leaves out, the smaller the step.
        """


@runtime_checkable
class Retractable(Protocol):
    """A codec with residuals or momentum, whose state must be rolled back for tensors missing on
    all ranks.
    """

    def retract(self, keys: Sequence[str]) -> None:
        """Restore the state that these parts had before their last ``allreduce``, because they were
        ``given`` on no rank.
        """


@runtime_checkable
class Rescaling(Protocol):
    """A codec whose residuals are in the units of its inputs and can be rescaled with them."""

    def rescale(self, keys: Sequence[str], factor: float) -> None:
        """Multiply the state of these keys by ``factor``, because their tensors are ``factor``
        times as large from now on.
        """


@runtime_checkable
class Voting(Protocol):
    """A codec whose results may be directions without magnitude."""

    votes: bool


class Momentum(NamedTuple):
    """The momentum of an optimizer, which adds gradients to a velocity: ``velocity = value *
    velocity + gradient``.

    - ``nesterov``: The optimizer steps along ``gradient + value * velocity``, not along the
      velocity.
    """

    value: float = 0.0
    nesterov: bool = False


@runtime_checkable
class MomentumAware(Protocol):
    """A codec that applies the optimizer's momentum itself, because the optimizer would apply it to
    delayed values.
    """

    def follow(self, momenta: Mapping[str, Momentum]) -> None:
        """Record the momentum that the optimizer applies to later results for these keys."""


class Packed(NamedTuple):
    """A compressed message with one rank's changes.

    - ``payload``: Its bytes (uint8).
    - ``kept``: The codec state to adopt once the payload is acknowledged.
    - ``whole``: The uncompressed size of the changes, in bytes.
    """

    payload: Array
    kept: Mapping[str, Array]
    whole: int


@runtime_checkable
class PushCodec(Codec, Protocol):
    """A codec that also compresses one rank's pushes to parameter servers."""

    def pack(self, parts: Sequence[Part], rank: int) -> Packed:
        """Compress the parts' ``data`` plus their residuals.

        All parts have one type, float32 or float64. Rounding depends on ``rank``.
        """

    def pack_all(self, parts: Sequence[Part]) -> Packed:
        """Pack data plus residuals without compression, in the type of the parts."""

    def arrived(self, packed: Packed, taken: bool) -> None:
        """Count the bytes, and adopt the new state if the push was ``taken``, that is, not too
        late.
        """

    def unpack(self, payload: Array, out: Array) -> None:
        """Decode a payload of ``pack`` into the flat ``out``, which has the total length of all
        parts.

        Runs on the server and uses no state. Raises ValueError or IndexError for a malformed
        payload.
        """
