"""Local SGD and its outer optimizers: ranks step independently and average their weights at
intervals.

The mean of all ranks' weights replaces the weights (Stich, "Local SGD Converges Fast and
Communicates Little", 2019), or an outer optimizer takes a step from the weights of the last
exchange towards the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.contracts import Peers
from farandole.strategies.references import LastWeightsReference, MeanReference, QuorumReference
from farandole.strategies.specs import number, parsed, quorum_of, quorum_suffix, real, refuse

if TYPE_CHECKING:
    from farandole.base.types import Array

NESTEROV, MOMENTUM = "nesterov", "momentum"
EPOCH = 0  # steps between exchanges: ``end_of_epoch`` decides


class LocalSGD:
    """Local SGD: average the weights after every ``every``-th step, or at the end of each epoch.

    ``every="epoch"``: Keras's ``fit`` reports the end of an epoch; elsewhere the program calls
    ``end_of_epoch()`` of the optimizer or trainer. ``outer``: the outer optimizer, whose gradient
    is the change from the last exchange to the mean: None (use the mean), "momentum" or "nesterov",
    with ``lr`` and ``momentum``. ``warmup``: the number of initial steps with an exchange after
    each (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020: post-local SGD, if it is
    half of the training).

    ``quorum``: wait only for this fraction of the ranks (below 1) or this number of ranks, and then
    for ``grace`` seconds (default 1). The changes of a later rank go into the next average,
    weighted by its steps like all others (Douillard et al., "Decoupled DiLoCo", 2026), and the rank
    continues from the newest weights. Raises ValueError for invalid numbers, and for ``quorum``
    with ``every="epoch"``.
    """

    name = "local_sgd"
    reference: MeanReference = LastWeightsReference()

    def __init__(
        self,
        every: int | str = 8,
        *,
        outer: str | None = None,
        lr: float | str = 1.0,
        momentum: float | str = 0.9,
        warmup: int | str = 0,
        quorum: float | str | None = None,
        grace: float | str | None = None,
    ) -> None:
        self.every = EPOCH if every == "epoch" else number(self.name, "every", every, at_least=1)
        if outer not in (None, MOMENTUM, NESTEROV):
            refuse(self.name, "outer", outer, 'None, "momentum" or "nesterov"')
        self.outer = outer
        self.lr = real(self.name, "lr", lr, lambda value: 0 < value < inf, "a number more than 0")
        self.momentum = real(
            self.name,
            "momentum",
            momentum,
            lambda value: 0 <= value < 1,
            "at least 0 and less than 1",
        )
        reach = self.lr / (1 - self.momentum) if outer is not None else 0.0
        self.warmup = number(self.name, "warmup", warmup, at_least=0)
        self.epochs = self.every == EPOCH
        self.quorum = quorum_of(self.name, quorum, grace)
        if self.quorum is None:
            self.reference = LastWeightsReference(outer=outer is not None, reach=reach)
        elif self.epochs:
            refuse(self.name, "quorum", quorum, "left out, or every be a number of steps")
        else:
            self.reference = QuorumReference(self.quorum, outer=outer is not None, reach=reach)
        anchors = () if outer is None and self.quorum is None else ("weights",)
        self.slots = anchors if outer is None else ("weights", "zeros")

    @classmethod
    def parse(cls, argument: str) -> LocalSGD:
        """Parse the argument of a spec such as ``local_sgd:8,warmup=100``."""
        return parsed(cls, argument, "8,warmup=100")

    @property
    def spec(self) -> str:
        """The complete spec, to compare options between ranks."""
        outer = f",outer={self.outer}" if self.outer and type(self) is LocalSGD else ""
        outer += f",lr={self.lr:g},momentum={self.momentum:g}" if self.outer else ""
        warmup = f",warmup={self.warmup}" if self.warmup else ""
        return f"{self.name}:{self.every or 'epoch'}{outer}{warmup}{quorum_suffix(self.quorum)}"

    def due(self, step: Any) -> Any:
        early = step <= self.warmup
        return early if self.epochs else early | (step % self.every == 0)

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        peers.average(weights)
        self.advance(weights, slots)

    def advance(self, weights: Sequence[Array], slots: Sequence[Sequence[Array]]) -> None:
        """Change weights and slots after an exchange in which ``weights`` became the mean."""
        if self.outer is None:
            for anchor, weight in zip(*slots, weights, strict=True) if slots else ():
                np.copyto(anchor, weight)
            return
        for weight, anchor, velocity in zip(weights, *slots, strict=True):
            gradient = anchor - weight
            velocity *= self.momentum
            velocity += gradient
            ahead = gradient + self.momentum * velocity if self.outer == NESTEROV else velocity
            anchor -= self.lr * ahead
            np.copyto(weight, anchor)


class BMUF(LocalSGD):
    """Blockwise model-update filtering: local SGD with block momentum (Chen and Huo, "Scalable
    Training of Deep Learning Machines by Incremental Block Training", 2016). The paper uses 1 - 1 /
    ranks for ``momentum``.
    """

    name = "bmuf"

    def __init__(
        self,
        every: int | str = 8,
        *,
        momentum: float | str = 0.5,
        lr: float | str = 1.0,
        warmup: int | str = 0,
        quorum: float | str | None = None,
        grace: float | str | None = None,
    ) -> None:
        outer: dict[str, Any] = {"outer": MOMENTUM, "lr": lr, "momentum": momentum}
        super().__init__(every, **outer, warmup=warmup, quorum=quorum, grace=grace)


class DiLoCo(LocalSGD):
    """Outer Nesterov momentum over many inner steps, with the defaults of Douillard et al.,
    "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    """

    name = "diloco"

    def __init__(
        self,
        every: int | str = 64,
        *,
        lr: float | str = 0.7,
        momentum: float | str = 0.9,
        warmup: int | str = 0,
        quorum: float | str | None = None,
        grace: float | str | None = None,
    ) -> None:
        outer: dict[str, Any] = {"outer": NESTEROV, "lr": lr, "momentum": momentum}
        super().__init__(every, **outer, warmup=warmup, quorum=quorum, grace=grace)
