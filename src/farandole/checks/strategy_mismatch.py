"""Finds ranks that reduce gradients where others exchange weights, or combine steps (Adasum): they
would wait for each other for ever. And ranks with other weights, whose exchange would not notice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.base.contracts import Observer, Waiting
from farandole.base.differences import first_difference
from farandole.base.digests import digest_of_text
from farandole.checks.agreement import all_equal, gathered
from farandole.core.engine import Engine
from farandole.errors import StalledError

if TYPE_CHECKING:
    from farandole.base.types import Array

# What reducers of gradients are called, with the number of the optimizer among those of this job.
_GRADIENTS = re.compile(
    r"(?:keras\.DistributedOptimizer|DistributedOptimizer|optimizer|(adasum))\.(\d+)(?:\.|$)"
)


class UnlikeKinds(Observer):
    """``with UnlikeKinds(...):`` around a collective that ranks with weights to exchange, or with
    Adasum, begin optimizer ``number`` with. Raises ValueError if another rank's optimizer of that
    number reduces gradients (or, for one with weights, has Adasum); all ranks are told.
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


def described(weights: Sequence[Array], names: Sequence[str]) -> str:
    """Name, shape and type of each, as JSON."""
    return json.dumps(
        [(row, weight.shape, weight.dtype.name) for row, weight in zip(names, weights, strict=True)]
    )


def check_same_weights(
    engine: Engine, name: str, ranks: Sequence[int], weights: Sequence[Array], names: Sequence[str]
) -> None:
    """Raise ValueError on all ranks if one has weights of another name, shape or type. Collective.
    ``name``: of the optimizer; ``ranks``: as above. Ranks that have joined do not count.
    """
    told = described(weights, names)
    if all_equal(engine, f"{name}.model", [digest_of_text(told)])[0] is not False:
        return
    said = gathered(engine, f"{name}.model", told.encode())
    places = [place for place, text in enumerate(said) if text]
    tables = [json.loads(said[place]) for place in places]
    difference = first_difference(tables, ("shape", "type"), [ranks[place] for place in places])
    raise ValueError(
        f"{label_of(name)}: all ranks must train the same model, but its weights differ:"
        f" {difference}"
    )


def label_of(name: str) -> str:
    """What messages call the optimizer whose exchanges have this name."""
    return name.partition(".weights.")[0]
