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
    """All ranks of one optimizer, for a ``Strategy``. All calls are collective, but ``push``,
    ``pull`` and ``average_async``.
    """

    rank: int
    size: int

    def average(self, arrays: Sequence[Array]) -> None:
        """The mean over all ranks of each array, in its place. The same bits on all ranks."""

    def barrier(self) -> None:
        """Returns when all ranks have come here."""

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        """Send ``arrays`` to the ranks ``to``; by rank, the arrays of those that sent to this
        one.
        """

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        """Each array goes ``gamma`` of the way to the mean of itself and those of the ranks that
        send to this one, which sends to the ranks ``to``. ``ever``: those to which it sends in
        other turns, too (none: always ``to``); all of them must know what it sends by a codec.
        ``gamma``: None is all of the way, or what suits the codec.
        """

    def push(
        self, rule: Any, anchors: Sequence[Array], changes: Sequence[Array], *, count: bool = True
    ) -> Any:
        """Give ``changes`` of the weights to the job's parameter servers, and take the centre in
        their place, as ``rule`` (a ``farandole.core.ps.clocks.Rule``) says; what became of the push
        (a ``farandole.core.ps.client.Pushed``). Not collective. ``anchors``: the weights without
        the changes, with which the centre may begin. Without ``count`` it is no step of this rank.
        """

    def pull(self, into: Sequence[Array]) -> None:
        """The centre, as it is. Not collective."""

    def average_async(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        others: Sequence[int],
        *,
        damp: bool = False,
        gamma: float | None = None,
    ) -> int:
        """Add ``changes`` to the weights that this rank shows to others, which begin as
        ``anchors``, and take those in their place; then begin to average them with the first of
        ``others`` that is not busy, in the background. The number of averages with other ranks
        since the last call; with ``damp``, changes are divided by it. Not collective, but for the
        first time. ``others``: higher ranks alone, so that two never refuse each other. ``gamma``:
        how much of the way to their mean two ranks go, see ``average_with``.
        """

    def average_shown(
        self, anchors: Sequence[Array], changes: Sequence[Array], *, gamma: float | None = None
    ) -> None:
        """As ``average_async``, but with all ranks: take the mean of what they show, with their
        changes.
        """


class ExchangeContext(NamedTuple):
    """The arguments of one exchange besides weights and slots.

    ``names``: of the weights, for messages. ``statistics``: arrays that nobody trains, like those
    of BatchNorm.
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

    same_slots: bool  # are slots the same on all ranks after an exchange?
    takes_codec: bool  # does any codec go with it?
    adds_up: bool  # is what each rank has learned added to what the others have?

    def objection(self, strategy: Strategy, codec: Codec) -> str:
        """Why ``codec`` does not go with ``strategy``, and the cure; empty if it does."""

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        """A new encoding. ``codec``: None sends weights whole; ``owner``: of the codec, see
        ``codecs.claim``.
        """


class Strategy(Protocol):
    """What ranks make of their weights after some of the steps that each takes with gradients of
    its own.

    It holds options alone, the same on all ranks, and serves any number of optimizers. Whatever
    lasts from one exchange to the next is in slots, which belong to the optimizer and to its
    checkpoints.
    """

    spec: str  # as in ``--strategy``
    epochs: bool  # is there an exchange at the end of each epoch?
    reference: SharedReference  # what ranks have in common after an exchange
    # an array for each weight: "weights" begins as a copy of it, "zeros" as zeros
    slots: tuple[str, ...]

    def due(self, step: Any) -> Any:
        """Is there an exchange after this step (1, 2, 3 ...)? ``step`` may be a number that JAX or
        TensorFlow traces: arithmetic, comparisons, ``&`` and ``|`` alone.
        """

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        """Change weights and slots (float32 or float64), in place. Collective, but for strategies
        that only push.
        """


@runtime_checkable
class Consolidating(Protocol):
    """A strategy for which the mean of all ranks' weights is not their common model."""

    def consolidate(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers
    ) -> None:
        """Give all ranks the same weights, in place. Collective."""
