"""Detection of ranks that reduce gradients while others exchange weights or combine steps (Adasum):
they would wait for each other forever.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.base.contracts import Observer, Waiting
from farandole.base.exchange_names import ADASUM, origin_of
from farandole.checks.catalogue import STRATEGY_MISMATCH
from farandole.checks.finding import Finding, error_of
from farandole.core.engine import Engine
from farandole.errors import StalledError


def other_strategy(label: str, rank: int, spec: str, other: int, other_spec: str) -> Finding:
    """Return the finding that ``rank`` has the strategy ``spec`` and another rank has a different
    one.
    """
    return STRATEGY_MISMATCH.finding(
        f"{label}: all ranks must use the same strategy, but rank {rank} has {spec!r} and rank"
        f" {other} has {other_spec!r}. Use one strategy on all ranks",
        where=f"rank {other}",
    )


def other_reduces(label: str, rank: int, spec: str, other: int) -> Finding:
    """Return the finding that ``rank`` has the strategy ``spec`` and another rank reduces
    gradients.
    """
    return STRATEGY_MISMATCH.finding(
        f"{label}: all ranks must use the same strategy, but rank {rank} has {spec!r} and rank"
        f" {other} reduces gradients. Use one strategy on all ranks",
        where=f"rank {other}",
    )


class StrategyMismatchCheck(Observer):
    """A context around the first collective of optimizer ``number``, on ranks that exchange weights
    or use Adasum. Raises ValueError on all ranks if another rank's optimizer of that number reduces
    gradients (or uses Adasum while this one exchanges weights).
    """

    def __init__(
        self, engine: Engine, number: int, ranks: Sequence[int], label: str, spec: str
    ) -> None:
        """``ranks``: the job ranks of the engine's ranks."""
        self._engine = engine
        self._number = number
        self._ranks = ranks
        self._label = label
        self._spec = spec
        self._found: Finding | None = None

    def waiting(self, collectives: Sequence[Waiting]) -> str:
        for name, missing in self._engine.missing().items():
            origin = origin_of(name)
            if origin is None or origin.number != self._number:
                continue
            others = [
                rank
                for rank in range(self._engine.size)
                if rank not in missing and rank != self._engine.rank
            ]
            both_adasum = origin.kind == ADASUM == self._spec
            if others and not both_adasum:
                own, other = self._ranks[self._engine.rank], self._ranks[others[0]]
                self._found = other_reduces(self._label, own, self._spec, other)
                return self._found.message
        return ""

    def __enter__(self) -> None:
        self._engine.observers.add(self)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._engine.observers.remove(self)
        if self._found is not None and isinstance(error, StalledError):
            raise error_of(ValueError, [self._found]) from None
