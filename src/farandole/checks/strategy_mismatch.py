"""Detects ranks that reduce gradients where others exchange weights, or combine steps (Adasum):
they would wait for each other for ever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from farandole.base.contracts import Observer, Waiting
from farandole.core.engine import Engine
from farandole.errors import StalledError

# What reducers of gradients are called, with the number of the optimizer among those of this job.
_GRADIENTS = re.compile(
    r"(?:keras\.DistributedOptimizer|DistributedOptimizer|optimizer|(adasum))\.(\d+)(?:\.|$)"
)


class StrategyMismatchCheck(Observer):
    """A context around the first collective of optimizer ``number``, on ranks with weights to
    exchange, or with Adasum. Raises ValueError on all ranks if another rank's optimizer of that
    number reduces gradients (or, for one with weights, has Adasum).
    """

    def __init__(
        self, engine: Engine, number: int, ranks: Sequence[int], label: str, spec: str
    ) -> None:
        """``ranks``: the numbers in the job of the engine's."""
        self._engine, self._number, self._ranks = engine, number, ranks
        self._label, self._spec = label, spec
        self._why = ""

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        for name, missing in self._engine.missing().items():
            found = _GRADIENTS.match(name)
            others = [
                rank
                for rank in range(self._engine.size)
                if rank not in missing and rank != self._engine.rank
            ]
            alike = found and found[1] == self._spec
            if found and int(found[2]) == self._number and others and not alike:
                own, other = self._ranks[self._engine.rank], self._ranks[others[0]]
                self._why = (
                    f"{self._label}: all ranks must use the same strategy, but rank {own} has"
                    f" {self._spec!r}, and rank {other} reduces gradients. Give one strategy to all"
                    " of them"
                )
                return self._why
        return ""

    def __enter__(self) -> None:
        self._engine.observers.add(self)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._engine.observers.remove(self)
        if self._why and isinstance(error, StalledError):
            raise ValueError(self._why) from None
