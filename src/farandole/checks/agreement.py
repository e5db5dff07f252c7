"""Comparison of all ranks' replicas by digests of weights, settings and gradients.

``replicas`` decides when to compare and interprets the result; the framework supplies weights and
settings. A comparison is usually one reduction of a few words: digests are equal if their minimum
is their maximum. Ranks send a report only if digests differ. Joined ranks need not take part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from farandole.base.digests import combined, digest_of_text
from farandole.base.types import DType, ReduceOp
from farandole.checks.call_order import CallReport, swapped_calls
from farandole.checks.call_sites import CallRecorder
from farandole.checks.exchange import all_equal, gathered, reduce
from farandole.checks.finding import Finding
from farandole.checks.held_state import (
    HELD_CURE,
    HeldState,
    different_state,
    digest_of_states,
    held,
    places_that_differ,
)
from farandole.checks.replicas import (
    Cures,
    History,
    ReplicaReport,
    Schedule,
    differences_of,
    same_gradients,
    same_gradients_of_some,
)
from farandole.checks.reporting import report
from farandole.core.engine import Engine
from farandole.job import context


class Replica(Protocol):
    """A framework's facts about one optimizer on this rank."""

    cures: Cures
    patient: bool  # whether the first step may precede the broadcast
    reported: Collection[str]  # codes of findings that the user has seen

    def names(self) -> Sequence[str]:
        """Return the parameters' names, for messages."""

    def weights(self) -> Sequence[int] | None:
        """Return a digest per parameter, 0 where it may differ between ranks; None if the weights
        cannot be read now.
        """

    def settings(self) -> Mapping[str, str]:
        """Return the optimizer's numeric settings as text, by name; empty if unknown."""


@runtime_checkable
class Explaining(Protocol):
    """A replica that may be able to explain a difference between the ranks' weights."""

    def cause(self) -> str:
        """Return the cause and the cure, or an empty text. Called after a difference is found."""


class ReplicaComparison:
    """The comparisons for one optimizer over one engine, starting with its first exchange.

    Ranks compare when they exchange gradients. ``due`` counts an exchange and is called once in
    each. Its result is part of the exchange; if it is true on any rank, all ranks call ``compare``.
    """

    def __init__(self, replica: Replica, engine: Engine, label: str) -> None:
        self.replica = replica
        self._engine = engine
        self._label = f"{label}.check"
        self._mode = context.settings().check if engine.size > 1 else "off"
        self._schedule = Schedule()
        self._history = History(patient=replica.patient, reported=replica.reported)
        self._step = 0  # exchanges so far
        self._steps = 0  # the optimizer's steps when the ranks were last equal
        self._calls = engine.numbers.recorded(CallRecorder) if self._mode != "off" else None
        self._ordered = 0  # the last unnamed call at the previous comparison
        self._held: list[HeldState] | None = None  # whether a comparison has taken place

    def soon(self) -> bool:
        """Return whether a comparison follows the next exchange, and so needs this rank's
        gradients.
        """
        return self._mode != "off" and self._schedule.soon()

    def due(self) -> bool:
        """Count an exchange. Return whether a comparison is due."""
        self._step += 1
        return self._mode != "off" and self._schedule.due()

    def any_due(self) -> bool:
        """Return whether ``due`` is true on any rank, for exchanges that cannot carry the result.
        Collective.
        """
        word = np.array([-int(self.due())], dtype=np.int64)
        reduce(self._engine, f"{self._label}.due", word, DType.INT64, ReduceOp.MIN)
        return bool(word[0])

    def compare(self, gradients: int | None = None, steps: int = -1) -> None:
        """Compare the ranks and report differences. Collective.

        ``gradients``: a digest of the gradients of this rank's own data in this step; None if they
        are unknown or zeros. ``steps``: the number of steps of this rank's optimizer; -1 if
        unknown. Raises RanksDifferError on all ranks with ``--check raise``.
        """
        weights, settings = self.replica.weights(), self.replica.settings()
        values = [
            combined(weights) if weights else None,
            digest_of_text(repr(sorted(settings.items()))) if settings else None,
            gradients,
            self._calls.digest(self._ordered) if self._calls is not None else None,
            # equal only if all other ranks have joined, because each rank's number differs
            self._engine.rank,
            self._history.compared,  # smaller on a rank that had joined
            self._digest_held(),
        ]
        equal = all_equal(self._engine, f"{self._label}.equal", values)
        same_weights, same_settings, same, same_calls, alone, in_step, same_held = equal
        found: list[Finding] = []
        if same_weights is False or same_settings is False:
            since = -1 if steps < 0 else steps - self._steps
            mine = ReplicaReport(
                tuple(weights or ()), settings, since, context.parameters_broadcast() > 0
            )
            reports = self._reports(mine)
            cures = self.replica.cures
            if isinstance(self.replica, Explaining) and not cures.certain:
                cures = cures._replace(certain=self.replica.cause())
            found = differences_of(reports, self.replica.names(), self._history, self._step, cures)
        else:
            if same_weights:
                self._history.equal_at = self._step
                self._steps = max(steps, 0)
                self._history.equal_count = len(weights or ())
            same = None if alone else same
            found = same_gradients(self._history, same, self._engine.size, self.replica.cures)
            if same is False and in_step and self._history.compared < 2 < self._engine.size:
                found = same_gradients_of_some(
                    self._history, self._all_gradients(gradients or 0), self.replica.cures
                )
        if same_held is False:
            found = [*found, *self._different_held()]
        report(self._engine, [*found, *self._order(same_calls)])

    def _digest_held(self) -> int | None:
        """Return a digest of the states outside of variables, at the first comparison."""
        if self._held is not None:
            return None
        self._held = held()
        return digest_of_states(self._held)

    def _different_held(self) -> list[Finding]:
        mine = [state._asdict() for state in self._held or ()]
        texts = gathered(self._engine, f"{self._label}.held", json.dumps(mine).encode())
        there = [rank for rank, text in enumerate(texts) if text]
        reports = [[HeldState(**fields) for fields in json.loads(texts[rank])] for rank in there]
        found = [
            different_state([states[place] for states in reports], 0, there, HELD_CURE)
            for place in places_that_differ(reports)
        ]
        return [one for one in found if one is not None]

    def _all_gradients(self, gradients: int) -> list[int]:
        """Return every rank's digest of its gradients; 0 for joined ranks."""
        table = np.zeros(self._engine.size, dtype=np.int64)
        table[self._engine.rank] = gradients
        reduce(self._engine, f"{self._label}.gradients", table, DType.INT64, ReduceOp.SUM)
        digests: list[int] = table.tolist()
        return digests

    def _order(self, same: bool | None) -> list[Finding]:
        """Find unnamed collectives that the ranks call in different orders."""
        if self._calls is None or same is not False:
            self._ordered = self._calls.last() if self._calls is not None else 0
            return []
        mine = self._calls.report(self._ordered)
        texts = gathered(self._engine, f"{self._label}.calls", json.dumps(mine._asdict()).encode())
        reports = [_call_report(text) if text else None for text in texts]
        self._ordered = min(report.last for report in reports if report is not None)
        found = swapped_calls(reports) if not self._calls.reported else None
        if found is not None:
            self._calls.reported = True
        return [] if found is None else [found]

    def _reports(self, mine: ReplicaReport) -> list[ReplicaReport | None]:
        texts = gathered(self._engine, self._label, json.dumps(mine._asdict()).encode())
        reports = [json.loads(text) if text else None for text in texts]
        return [
            None
            if fields is None
            else ReplicaReport(**{**fields, "weights": tuple(fields["weights"])})
            for fields in reports
        ]


def _call_report(text: bytes) -> CallReport:
    fields = json.loads(text)
    return CallReport(
        **{**fields, "calls": {int(number): place for number, place in fields["calls"].items()}}
    )
