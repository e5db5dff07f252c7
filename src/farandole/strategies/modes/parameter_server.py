"""Parameter servers: ranks push their deltas to a centre and continue from it, synchronously or
independently.

A rank steps with its own optimizer, and pushes its delta: the change of its weights since its last
pull.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import Peers
from farandole.core.ps.clocks import OPTIMIZERS, Rule
from farandole.core.ps.staleness import Staleness
from farandole.strategies.deltas import deltas, restart_from
from farandole.strategies.references import CentreReference
from farandole.strategies.specs import boolean, number, parsed, real, refuse

if TYPE_CHECKING:
    from farandole.base.types import Array

_RATES = {"adagrad": 0.01, "adam": 0.001}  # usual learning rates; 1 for the others


class ParameterServer:
    """Synchronous parameter servers: after every ``every``-th step, the centre takes the mean of
    all ranks' deltas, and all ranks continue from it (Li et al., 2014).

    - ``backup``: The number of ranks that a step does not wait for; their late pushes are dropped
      (Chen et al., "Revisiting Distributed Synchronous SGD", 2016).
    - ``optimizer``: The servers' optimizer, whose gradient is the delta: "add" (adds it unchanged),
      "sgd", "momentum", "adagrad" or "adam", with ``lr`` and ``momentum``.
    - ``staleness``: Statistics of this rank.

    Raises ValueError for invalid options.
    """

    name = "ps"
    sync = True
    epochs = False
    reference = CentreReference()
    slots = ("weights",)

    def __init__(
        self,
        every: int | str = 1,
        *,
        backup: int | str = 0,
        optimizer: str = "add",
        lr: float | str = 0.0,
        momentum: float | str = 0.9,
    ) -> None:
        self._set(every, optimizer, lr, momentum)
        self.backup = number(self.name, "backup", backup, at_least=0)

    def _set(
        self, every: int | str, optimizer: str, lr: float | str, momentum: float | str
    ) -> None:
        self.every = number(self.name, "every", every, at_least=1)
        if optimizer not in OPTIMIZERS:
            refuse(self.name, "optimizer", optimizer, ", ".join(OPTIMIZERS))
        self.optimizer = optimizer
        usual = _RATES.get(optimizer, 1.0)
        self.lr = (
            real(
                self.name,
                "lr",
                lr,
                lambda value: 0 <= value < inf,
                "a number, at least 0 (usually 0)",
            )
            or usual
        )
        self.momentum = real(
            self.name,
            "momentum",
            momentum,
            lambda value: 0 <= value < 1,
            "a number, at least 0 and less than 1",
        )
        self.backup = 0
        self.bound = -1
        self.damp = False
        self.staleness = Staleness()

    @classmethod
    def parse(cls, argument: str) -> ParameterServer:
        """Parse the argument of a spec such as ``ps:2,backup=1``: the first value, then others by
        keyword.
        """
        return parsed(cls, argument, "3,every=2,damp=1")

    @property
    def rule(self) -> Rule:
        """The rule for the servers' steps."""
        return Rule(
            sync=self.sync,
            backup=self.backup,
            bound=self.bound,
            damp=self.damp,
            optimizer=self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
        )

    @property
    def spec(self) -> str:
        """The complete spec; it differs between ranks with different options."""
        steps = (
            ""
            if self.optimizer == "add"
            else f",optimizer={self.optimizer},lr={self.lr:g},momentum={self.momentum:g}"
        )
        return f"{self.name}:{self._argument()}{steps}"

    def _argument(self) -> str:
        return f"{self.every},backup={self.backup}"

    def _damp(self) -> str:
        return ",damp=1" if self.damp else ""

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        if self.backup >= peers.size:
            refuse(
                self.name, "backup", self.backup, f"less than the number of ranks ({peers.size})"
            )
        (anchors,) = slots
        centre = deltas(weights, anchors)
        self.staleness.see(*peers.push(self.rule, anchors, centre))
        restart_from(weights, anchors, centre)

    def consolidate(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers
    ) -> None:
        """Set the weights to the centre after all ranks have pushed their remaining deltas."""
        (anchors,) = slots
        centre = deltas(weights, anchors)
        peers.push(self.rule, anchors, centre, count=False)
        peers.barrier()  # all ranks have pushed
        peers.pull(centre)
        restart_from(weights, anchors, centre)
        peers.barrier()  # no rank pushes before all have pulled


class AsyncParameterServer(ParameterServer):
    """Asynchronous parameter servers: after every ``every``-th step, a rank pushes its delta, which
    the centre adds immediately, and continues from the centre without waiting for other ranks (Dean
    et al., "Large Scale Distributed Deep Networks", 2012).

    ``damp``: divide a delta by the number of updates of the centre since the rank's last pull
    (Zhang et al., "Staleness-aware Async-SGD", 2016). For the other arguments, see
    ``ParameterServer``.
    """

    name = "ps_async"
    sync = False
    reference = CentreReference(adds_up=True)

    def __init__(
        self,
        every: int | str = 1,
        *,
        damp: bool | str = False,
        optimizer: str = "add",
        lr: float | str = 0.0,
        momentum: float | str = 0.9,
    ) -> None:
        self._set(every, optimizer, lr, momentum)
        self.damp = boolean(self.name, "damp", damp)

    def _argument(self) -> str:
        return f"{self.every}{self._damp()}"


class SSP(ParameterServer):
    """Stale synchronous parallel: asynchronous parameter servers, where a rank waits while it is
    more than ``bound`` exchanges ahead of the slowest rank (Ho et al., "More Effective Distributed
    ML via a Stale Synchronous Parallel Parameter Server", 2013).

    For the other arguments, see ``AsyncParameterServer``.
    """

    name = "ssp"
    sync = False
    reference = CentreReference(adds_up=True)

    def __init__(
        self,
        bound: int | str = 3,
        *,
        every: int | str = 1,
        damp: bool | str = False,
        optimizer: str = "add",
        lr: float | str = 0.0,
        momentum: float | str = 0.9,
    ) -> None:
        self._set(every, optimizer, lr, momentum)
        self.damp = boolean(self.name, "damp", damp)
        self.bound = number(self.name, "bound", bound, at_least=0)

    def _argument(self) -> str:
        return f"{self.bound},every={self.every}{self._damp()}"
