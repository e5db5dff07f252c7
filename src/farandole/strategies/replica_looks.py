"""When the ranks of an optimizer compare their replicas, and what each brings to that."""

from __future__ import annotations

from farandole.base.digests import combined
from farandole.checks.agreement import Agreement
from farandole.strategies.ballot import Tally


class ReplicaLooks:
    """The comparisons of one optimizer's replicas, asked for by its ballots.

    ``agreement``: makes them, over the present engine; None without a replica. ``steps``: of this
    rank's optimizer; ``spread``: by how much ranks differ in them. ``sampling``: digests of this
    rank's own gradients are wanted in this step.
    """

    def __init__(self) -> None:
        self.agreement: Agreement | None = None
        self.steps = 0
        self.spread = 0
        self.sampling = False
        self._samples: dict[int, int] = {}
        self._asked = False  # by some rank

    def begin_step(self) -> None:
        self.sampling = self.agreement is not None and self.agreement.soon()
        self._samples = {}

    def sample(self, index: int, digest: int) -> None:
        """Note the digest of a gradient that this rank's own data gave."""
        self._samples[index] = digest

    def due(self) -> bool:
        """Count an exchange. Return whether this rank wants to look."""
        return self.agreement is not None and self.agreement.due()

    def hear(self, tally: Tally) -> None:
        """Note what the ranks agreed upon. Ranks that had joined know an older spread: it is agreed
        upon as well, or some ranks would look alone.
        """
        self.spread = tally.spread
        if tally.compare_replicas or not tally.spread_was_known:
            self._asked = True

    def look_if_asked(self) -> None:
        """Compare the replicas, with the weights after the last step, if some rank asked for it.
        Collective.
        """
        if not self._asked:
            return
        self._asked = False
        if self.agreement is not None:
            own = [digest for _, digest in sorted(self._samples.items())]
            self.agreement.look(combined(own) if any(own) else None, self.steps)
