"""Strategies: what ranks make of their weights, the calls to other ranks that they have, and how
the weights travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from farandole.base.contracts.codecs import Codec, PushCodec

if TYPE_CHECKING:
    from farandole.base.types import Array


class Peers(Protocol):
    """The ranks of one optimizer, for a ``Strategy``. All calls but ``push``, ``pull`` and
    ``average_async`` are collective.
    """

    rank: int
    size: int

    def average(self, arrays: Sequence[Array]) -> None:
        """Replace each array by its mean over all ranks. The same bits on all ranks."""

    def barrier(self) -> None:
        """Return when all ranks have called this."""

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        """Send ``arrays`` to the ranks ``to``. Returns the arrays sent to this rank, by rank."""

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        """Send ``arrays`` to the ranks ``to``, and move each by the share ``gamma`` of the way to
        the mean of itself and the received ones. ``ever``: the ranks to which this one sends in any
        turn (none: always ``to``); with a codec all of them need each message. ``gamma``: None is
        all of the way, or the consensus step of the codec.
        """

    def push(
        self, rule: Any, anchors: Sequence[Array], changes: Sequence[Array], *, count: bool = True
    ) -> Any:
        """Push ``changes`` of the weights to the job's parameter servers, and replace them by the
        centre. ``rule``: a ``farandole.core.ps.clocks.Rule``. Returns a
        ``farandole.core.ps.client.Pushed``. Not collective. ``anchors``: the weights without the
        changes, with which the centre may begin. ``count``: the push is a step of this rank.
        """

    def pull(self, into: Sequence[Array]) -> None:
        """Copy the centre. Not collective."""

    def average_async(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        others: Sequence[int],
        *,
        damp: bool = False,
        gamma: float | None = None,
    ) -> int:
        """Add ``changes`` to this rank's shared weights, which begin as ``anchors``, and replace
        them by the result; then average the shared weights with the first of ``others`` that is not
        busy, in the background. Returns the number of averages since the last call; with ``damp``,
        changes are divided by it. Only the first call is collective. ``others``: higher ranks
        alone, so that two ranks never refuse each other. ``gamma``: the share of the way to their
        mean that both ranks move; None is all of it.
        """

    def average_shown(
        self, anchors: Sequence[Array], changes: Sequence[Array], *, gamma: float | None = None
    ) -> None:
        """Replace ``changes`` by the mean over all ranks of shared weights with changes added.
        Collective.
        """


class ExchangeContext(NamedTuple):
    """The arguments of one exchange besides weights and slots.

    ``names``: of the weights, for messages. ``statistics``: untrained arrays, like those of
    BatchNorm.
    """

    names: Sequence[str] | None = None
    statistics: Sequence[Array] = ()

    def names_of(self, weights: Sequence[Array]) -> Sequence[str]:
        """The names of the weights: their places, if they have none."""
        return self.names or [f"weight {number}" for number in range(len(weights))]


class Encoding(Protocol):
    """How the weights of one optimizer travel between ranks. One for each optimizer."""

    slots: tuple[str, ...]  # kept between exchanges, behind the strategy's own
    push_codec: PushCodec | None  # for what this rank pushes to parameter servers

    def bind(self, session: Any) -> None:
        """Use this ``strategies.peers.PeerSession`` from now on: another engine begins with it."""

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """Run the strategy's exchange, on weights and slots as this encoding sends them. Returns
        whether the statistics travelled with the weights.
        """

    def averaged(self, weights: Sequence[Array], slots: Sequence[Sequence[Array]]) -> None:
        """Follow the mean of all ranks, which the weights have become."""

    def reset(self) -> None:
        """Weights and slots have been replaced on all ranks: begin again."""

    def other_weights(self) -> None:
        """The next exchange is of other weights of the optimizer."""

    def forget(self) -> None:
        """Drop what a codec keeps of these weights."""


class SharedReference(Protocol):
    """The values that ranks have in common after an exchange, from which a codec measures. An
    immutable object, which serves any number of strategies and optimizers; see
    ``strategies.references`` for those that there are.
    """

    same_slots: bool  # slots are the same on all ranks after an exchange
    takes_codec: bool  # some codec goes with this reference
    adds_up: bool  # the changes of all ranks are added, not averaged

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """Why ``codec`` does not go with ``strategy``, and the cure; empty if it does."""

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """A new encoding. ``codec``: None sends weights whole; ``owner``: of the codec, see
        ``codecs.claim``.
        """


class Strategy(Protocol):
    """Exchanges weights after some steps. Each rank steps with its own gradients.

    A strategy holds only options, the same on all ranks, and serves any number of optimizers. State
    that lasts from one exchange to the next is in slots, which belong to the optimizer and to its
    checkpoints.
    """

    spec: str  # as in ``--strategy``
    epochs: bool  # an exchange follows the end of each epoch
    reference: SharedReference  # what ranks have in common after an exchange
    # an array for each weight: "weights" begins as a copy of it, "zeros" as zeros
    slots: tuple[str, ...]

    def due(self, step: Any) -> Any:
        """Return whether an exchange follows this step (1, 2, 3 ...). ``step`` may be a number that
        JAX or TensorFlow traces: use arithmetic, comparisons, ``&`` and ``|`` alone.
        """

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        """Change weights and slots (float32 or float64) in place. Collective, except in strategies
        that only push.
        """


@runtime_checkable
class Consolidating(Protocol):
    """A strategy whose common model is not the mean of all ranks' weights."""

    def consolidate(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers
    ) -> None:
        """Give all ranks the same weights, in place. Collective."""
