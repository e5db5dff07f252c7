"""Elastic averaging: weights are pulled towards a common centre, but may differ from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Peers
from farandole.strategies.references import FirstSlotReference
from farandole.strategies.specs import number, parsed, real

if TYPE_CHECKING:
    from farandole.base.types import Array


class EASGD:
    """Synchronous elastic averaging SGD (Zhang, Choromanska and LeCun, 2015).

    After every ``every``-th step, a rank's weights move by ``beta / ranks`` of their distance to
    the centre, and the centre moves by ``beta`` of its distance to the mean. The centre is the same
    on all ranks; the weights are not. Raises ValueError for invalid numbers.
    """

    name = "easgd"
    epochs = False
    reference = FirstSlotReference()
    slots = ("weights",)

    def __init__(self, every: int | str = 8, *, beta: float | str = 0.9) -> None:
        self.every = number(self.name, "every", every, at_least=1)
        self.beta = real(
            self.name, "beta", beta, lambda value: 0 < value <= 1, "more than 0 and at most 1"
        )

    @classmethod
    def parse(cls, argument: str) -> EASGD:
        """Parse the argument of a spec such as ``easgd:8,beta=0.5``."""
        return parsed(cls, argument, "8,beta=0.5")

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.every},beta={self.beta:g}"

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        (centres,) = slots
        means = [weight.copy() for weight in weights]
        peers.average(means)
        alpha = self.beta / peers.size
        for weight, centre, mean in zip(weights, centres, means, strict=True):
            weight -= alpha * (weight - centre)
            centre += self.beta * (mean - centre)
