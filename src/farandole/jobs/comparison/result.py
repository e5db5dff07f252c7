"""The data of a comparison of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.jobs.comparison.curves import RunCurve
from farandole.jobs.comparison.equal_value import EqualValue
from farandole.jobs.comparison.fairness import Unfairness
from farandole.jobs.comparison.measures import RunMeasures


@dataclass(frozen=True, repr=False)
class ComparedRuns:
    """The data of a comparison; lists have an entry per run, in the order of the request.

    - ``measures``: The measures of each run.
    - ``differences``: The differing facts by name.
    - ``environment``, ``source``: See ``sources``.
    - ``curves``: The metrics that all runs have, by name.
    - ``equal``: The cost of an equal value of one metric; None without a common metric, or if its
      goal is unknown.
    - ``unfair``: The reasons why the runs are not comparable; empty if none is known.
    """

    measures: tuple[RunMeasures, ...]
    differences: dict[str, list[Any]]
    environment: dict[str, list[str | None]]
    source: list[dict[str, Any]]
    curves: dict[str, list[RunCurve]]
    equal: EqualValue | None
    unfair: tuple[Unfairness, ...]

    def to_json(self, *, curves: bool = True) -> dict[str, Any]:
        """Return the comparison as JSON data. ``curves=False`` omits the curves."""
        found: dict[str, Any] = {
            "runs": [each.run_id for each in self.measures],
            "measures": [each.to_json() for each in self.measures],
            "unfair": [each.to_json() for each in self.unfair],
            "equal_value": None if self.equal is None else self.equal.to_json(),
            "differences": self.differences,
            "environment": self.environment,
            "source": self.source,
            "metrics": list(self.curves),
        }
        if curves:
            found["curves"] = {
                name: [each.to_json() for each in row] for name, row in self.curves.items()
            }
        return found
