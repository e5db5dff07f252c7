"""Checks of gradients in a reducer that receives them one by one."""

from __future__ import annotations

from farandole.base.digests import combined
from farandole.checks.agreement import Replica, ReplicaComparison
from farandole.core.engine import Engine


class GradientChecks:
    """Compares the ranks' replicas and gradients at some steps. The decision to compare is part of
    the reducer's exchanges.

    ``steps``: the steps of this rank's optimizer. ``spread``: the difference between the ranks'
    step counts. ``sampling``: whether this step needs digests of this rank's own gradients.
    """

    def __init__(self, replica: Replica | None) -> None:
        self.steps = 0
        self.spread = 0
        self.sampling = False
        self._replica = replica
        self._agreement: ReplicaComparison | None = None
        self._samples: dict[int, int] = {}
        self._wanted = False  # whether some rank requests a comparison

    @property
    def active(self) -> bool:
        """True if there is a replica to compare over the current engine."""
        return self._agreement is not None

    def begin(self, engine: Engine, name: str) -> None:
        """Start to compare over ``engine``."""
        if self._replica is not None:
            self._agreement = ReplicaComparison(self._replica, engine, name)

    def begin_step(self) -> None:
        self.sampling = self._agreement is not None and self._agreement.soon()
        self._samples = {}

    def on_gradient(self, index: int, digest: int) -> None:
        """Keep the digest of a gradient of this rank's own data."""
        self._samples[index] = digest

    def due(self) -> bool:
        """Count an exchange. Return whether this rank requests a comparison."""
        return self._agreement is not None and self._agreement.due()

    def on_agreed(self, spread: int, *, wanted: bool) -> None:
        """Keep the agreed spread. ``wanted``: whether some rank requests a comparison."""
        self.spread = spread
        self._wanted = self._wanted or wanted

    def compare_if_wanted(self) -> None:
        """Compare the replicas with the weights after the last step. Collective."""
        if not self._wanted:
            return
        self._wanted = False
        if self._agreement is not None:
            own = [digest for _, digest in sorted(self._samples.items())]
            self._agreement.compare(combined(own) if any(own) else None, self.steps)

    def after_step(self) -> None:
        self.steps += 1
