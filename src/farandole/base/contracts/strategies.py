"""Contracts for strategies: how ranks combine weights, and how the weights are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from farandole.base.contracts.codecs import Codec, PushCodec

if TYPE_CHECKING:
    from farandole.base.types import Array


class Peers(Protocol):
    """The ranks of one optimizer, as seen by a ``Strategy``.

    All methods except ``push``, ``pull`` and ``average_async`` are collective.
    """

    rank: int
    size: int

    def average(self, arrays: Sequence[Array]) -> None:
        """Replace each array by its mean over all ranks, bitwise identical on every rank."""

    def barrier(self) -> None:
        """Wait until all ranks have called this."""

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        """Send ``arrays`` to the ranks in ``to``; return the received arrays by sending rank."""

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        """Send ``arrays`` to the ranks in ``to``, and move each array toward the mean of itself
        and the received arrays.

        - ``ever``: All ranks to which this rank sends in any turn; empty if that is always ``to``.
          With a codec, all of them need each message.
        - ``gamma``: The fraction of the distance to move. None means all of it, or the codec's
          consensus step.
        """

    def push(
        self, rule: Any, anchors: Sequence[Array], changes: Sequence[Array], *, count: bool = True
    ) -> Any:
        """Push ``changes`` of the weights to the job's parameter servers, and replace them by the
        centre.

        Not collective. Returns a ``farandole.core.ps.client.Pushed``.

        - ``rule``: A ``farandole.core.ps.clocks.Rule``.
        - ``anchors``: The weights without the changes; the centre may be initialized from them.
        - ``count``: Whether the push counts as a step of this rank.
        """

    def pull(self, into: Sequence[Array]) -> None:
        """Copy the centre into the arrays. Not collective."""

    def average_async(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        others: Sequence[int],
        *,
        damp: bool = False,
        gamma: float | None = None,
    ) -> int:
        """Add ``changes`` to this rank's shared weights and replace them by the result; then
        average the shared weights in the background with the first of ``others`` that is not busy.

        The shared weights start as ``anchors``. Only the first call is collective. Returns the
        number of averages since the last call.

        - ``others``: Higher ranks only, so that two ranks never refuse each other.
        - ``damp``: Whether to divide the changes by the number of averages.
        - ``gamma``: The fraction of the distance to their mean that both ranks move; None means all
          of it.
        """

    def average_shown(
        self, anchors: Sequence[Array], changes: Sequence[Array], *, gamma: float | None = None
    ) -> None:
        """Add ``changes`` to the shared weights and replace them by the mean over all ranks.
        Collective.
        """


class ExchangeContext(NamedTuple):
    """The arguments of one exchange other than weights and slots.

    ``names`` of the weights are for messages. ``statistics`` are untrained arrays, such as the
    running statistics of BatchNorm.
    """

    names: Sequence[str] | None = None
    statistics: Sequence[Array] = ()

    def names_of(self, weights: Sequence[Array]) -> Sequence[str]:
        """Return the names of the weights, or names by position if they have none."""
        return self.names or [f"weight {number}" for number in range(len(weights))]


class Encoding(Protocol):
    """Encoding of one optimizer's weights for exchanges. Each optimizer has its own."""

    slots: tuple[str, ...]  # strategy slots of the encoding, after the strategy's own
    push_codec: PushCodec | None  # for pushes to parameter servers

    def bind(self, session: Any) -> None:
        """Use this ``strategies.peers.PeerSession`` from now on; a new engine has a new session."""

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """Run the strategy's exchange on encoded weights and slots.

        Returns whether the statistics were sent with the weights.
        """

    def average(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        statistics: Sequence[Array],
    ) -> None:
        """Set the same weights and statistics on all ranks, in place. Calls ``averaged``.
        Collective.

        ``slots`` is empty if the strategy has not begun.
        """

    def averaged(self, weights: Sequence[Array], slots: Sequence[Sequence[Array]]) -> None:
        """Update the state after the weights were replaced by the mean over all ranks."""

    def reset(self) -> None:
        """Reset the state after weights and slots were replaced on all ranks."""

    def other_weights(self) -> None:
        """Prepare for an exchange of other weights of the optimizer."""

    def forget(self) -> None:
        """Drop the codec state for these weights."""


class SharedReference(Protocol):
    """The values shared by all ranks after an exchange; a codec encodes differences from them.

    References are immutable; one instance serves any number of strategies and optimizers. See
    ``strategies.references`` for the implementations.
    """

    same_slots: bool  # slots are the same on all ranks after an exchange
    takes_codec: bool  # at least one codec works with this reference
    adds_up: bool  # changes are summed over the ranks, not averaged

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """Return why ``codec`` does not work with ``strategy``, with the cure; empty if it
        works.
        """

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """Return a new encoding.

        ``codec`` None sends weights uncompressed. ``owner`` is the codec's owner; see
        ``codecs.claim``.
        """


class Strategy(Protocol):
    """Exchanges weights after some steps, while each rank steps with its own gradients.

    A strategy holds only options, which are the same on all ranks, and serves any number of
    optimizers. State that outlives an exchange is in strategy slots, which belong to the optimizer
    and its checkpoints.
    """

    spec: str  # in the syntax of ``--strategy``
    epochs: bool  # whether an exchange follows the end of each epoch
    reference: SharedReference  # values shared by all ranks after an exchange
    # One array per weight and slot: "weights" starts as a copy of the weight, "zeros" as zeros.
    slots: tuple[str, ...]

    def due(self, step: Any) -> Any:
        """Return whether an exchange follows this step (1, 2, 3, ...).

        ``step`` may be traced by JAX or TensorFlow: use only arithmetic, comparisons, ``&`` and
        ``|``.
        """

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        """Change weights and slots (float32 or float64) in place.

        Collective, except in strategies that only push.
        """


@runtime_checkable
class Consolidating(Protocol):
    """A strategy whose common model is not the mean of all ranks' weights."""

    def consolidate(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers
    ) -> None:
        """Make the weights equal on all ranks, in place. Collective."""
