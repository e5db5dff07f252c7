"""Detection of ranks that do not train one model, from a report of each rank's replica.

A report holds digests of the parameters, the optimizer's settings and its number of steps. Ranks
report at the first step and then at growing intervals (``Schedule``). Ranks that exchange
gradients, begin with equal weights and take the same steps hold the same bits after each step, so
any difference is caused by the program. ``findings`` names the ranks, the parameter, the likely
cause and the cure. Everything here is pure: ``agreement`` exchanges the reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.checks.catalogue import (
    DIFFERENT_FROZEN,
    DIFFERENT_SETTINGS,
    DIVIDED_TWICE,
    DRIFT,
    SAME_DATA,
    SHARED_DATA,
    UNEQUAL_NEW_PARAMETERS,
    UNEQUAL_START,
)
from farandole.checks.finding import Finding
from farandole.errors import ranks_named

_RAREST = 1024  # the longest interval between comparisons, in steps
# names of settings with their own text
KIND, FROZEN = "the optimizer", "number of frozen parameters"

# Kinds of findings about one subject: only the first one is reported.
WEIGHTS_CODES = {UNEQUAL_START.code, DRIFT.code, UNEQUAL_NEW_PARAMETERS.code}
SETTINGS_CODES = {DIFFERENT_SETTINGS.code, DIFFERENT_FROZEN.code}
DATA_CODES = {SAME_DATA.code, SHARED_DATA.code, DIVIDED_TWICE.code}


class Cures(NamedTuple):
    """The cures of mistakes, in a framework's own terms."""

    broadcast: str  # gives all ranks equal initial weights
    share: str  # gives each rank its part of the data
    certain: str = ""  # why ranks must differ, if known
    state: str = ""  # gives all ranks one optimizer state, where ``broadcast`` does not
    # passes already reduced gradients to an optimizer that reduces them again
    reduced: str = ""


class ReplicaReport(NamedTuple):
    """One rank's report.

    ``weights``: a digest per parameter, 0 for one that may differ; empty if unknown. ``settings``:
    the optimizer's numeric settings as text, by name. ``steps``: the optimizer's steps since the
    ranks were last equal; -1 if unknown. ``broadcast``: whether parameters were broadcast before.
    """

    weights: tuple[int, ...] = ()
    settings: Mapping[str, str] = {}
    steps: int = -1
    broadcast: bool = False


class History:
    """The comparisons so far, equal on all ranks. ``patient``: the first step may precede the
    broadcast, in frameworks that create variables late.
    """

    def __init__(
        self, *, patient: bool = False, equal_at: int = 0, reported: Iterable[str] = ()
    ) -> None:
        self.patient = patient
        self.equal_at = equal_at  # the last step at which all ranks held equal weights; 0: never
        self.equal_count = 0  # the number of parameters then
        self.different = 0  # comparisons that found different weights
        self.same_gradients = 0  # consecutive comparisons that found equal gradients on all ranks
        self.compared = 0  # comparisons of the gradients of every two ranks
        # pairs of ranks with equal gradients in all these comparisons
        self.same_as: list[tuple[int, int]] = []
        self.reported = set(reported)  # codes; each subject is reported once


class Schedule:
    """The steps to compare at: 1, 2, 4, 8, ... 1024, and then every 1024th."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 1

    def soon(self) -> bool:
        """Return whether the next step is a step to compare at."""
        return self._count + 1 == self._next

    def due(self) -> bool:
        """Count a step. Return whether it is a step to compare at."""
        self._count += 1
        if self._count < self._next:
            return False
        self._next += min(self._next, _RAREST)
        return True


def numbers(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the numbers of a configuration as text, by name; nested names are joined by a dot."""
    found: dict[str, str] = {}
    for name, value in sorted(config.items(), key=lambda pair: str(pair[0])):
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (bool, int, float, np.number, np.bool_)):
            found[f"{prefix}{name}"] = f"{value}"
    return found


def differences_of(
    reports: Sequence[ReplicaReport | None],
    names: Sequence[str],
    history: History,
    step: int,
    cures: Cures,
) -> list[Finding]:
    """Return the finding if ranks differ in weights or settings, unless the subject was reported
    before.

    ``reports``: the reports by rank; None for a joined rank. ``names``: the parameters' names.
    ``step``: the number of the preceding exchange of gradients. Changes ``history``.
    """
    present = {rank: report for rank, report in enumerate(reports) if report is not None}
    if SETTINGS_CODES & history.reported:
        return []
    found = _settings(present)
    if found is None:
        found = _weights(present, names, history, step, cures)
        if found is None or WEIGHTS_CODES & history.reported:
            return []
    history.reported.add(found.code)
    return [found]


def same_gradients(history: History, same: bool | None, size: int, cures: Cures) -> list[Finding]:
    """Return the finding that all ranks' own gradients are equal, if they are twice in a row.
    ``same``: whether they are equal in this comparison; None if unknown.
    """
    if same is not None:
        history.same_gradients = history.same_gradients + 1 if same else 0
    if history.same_gradients < 2 or DATA_CODES & history.reported:
        return []
    found = same_data(size, "computed the same gradients", cures)
    history.reported.add(found.code)
    found = found._replace(
        text=f"{found.text}. If the model's input is random noise, as for the generator of a GAN,"
        " seed the noise by rank()"
    )
    if cures.reduced:
        text = (
            f"{found.text}. If {cures.reduced} has already reduced the gradients, pass them to the"
            " plain optimizer"
        )
        found = found._replace(text=text)
    return [found]


def same_gradients_of_some(history: History, digests: Sequence[int], cures: Cures) -> list[Finding]:
    """Return the finding that some ranks have equal gradients, as with data divided by
    ``local_rank()``, if two comparisons found the same ranks.

    ``digests``: by rank, the digest of the gradients of its own data; 0 if unknown.
    """
    first = {digest: rank for rank, digest in reversed(list(enumerate(digests)))}
    pairs = [
        (first[digest], rank)
        for rank, digest in enumerate(digests)
        if digest and first[digest] < rank
    ]
    history.compared += 1
    history.same_as = (
        pairs if history.compared == 1 else [pair for pair in history.same_as if pair in pairs]
    )
    if history.compared < 2 or not history.same_as or DATA_CODES & history.reported:
        return []
    history.reported.add(SHARED_DATA.code)
    one, other = history.same_as[0]
    several = len(history.same_as)
    and_so = (
        f", and {several - 1} more of {len(digests)} ranks also share theirs" if several > 1 else ""
    )
    text = (
        f"rank {other} computed the same gradients as rank {one}{and_so}, probably from the same"
        " data. Give each rank its part of the data, by rank() and size() instead of"
        f" local_rank(): {cures.share}"
    )
    return [SHARED_DATA.finding(text, cure=cures.share, where=ranks_named([one, other]))]


def same_data(size: int, how: str, cures: Cures) -> Finding:
    """Return the finding that all ranks read the same data. ``how``: the verb phrase after "all
    ranks" in the message.
    """
    text = (
        f"all {size} ranks {how}, so {size} ranks probably do the work of one. Give each rank its"
        f" part of the data: {cures.share}"
    )
    return SAME_DATA.finding(text, cure=cures.share)


def _settings(present: Mapping[int, ReplicaReport]) -> Finding | None:
    reports = list(present.values())
    for name in sorted(
        {name for report in reports for name in report.settings},
        key=lambda name: (name != KIND, name),
    ):
        values: dict[str, list[int]] = {}
        for rank, report in present.items():
            if report.settings:
                values.setdefault(report.settings.get(name, "not there"), []).append(rank)
        if len(values) > 1:
            listed = ", ".join(
                f"{value} on {ranks_named(ranks)}" for value, ranks in values.items()
            )
            if name == FROZEN:
                return DIFFERENT_FROZEN.finding(
                    f"the ranks train different parameters: the {name} is {listed}. The gradient"
                    " of a parameter frozen on only some ranks is averaged with zeros. Freeze the"
                    " same parameters on all ranks",
                    where=name,
                )
            return DIFFERENT_SETTINGS.finding(
                "the ranks use different optimizer settings, which makes their weights diverge:"
                f" {name} is {listed}. Use the same settings on all ranks; compute a rate that"
                " depends on a metric from the metric's mean over all ranks",
                where=name,
            )
    return None


def _weights(
    present: Mapping[int, ReplicaReport],
    names: Sequence[str],
    history: History,
    step: int,
    cures: Cures,
) -> Finding | None:
    known = {rank: report.weights for rank, report in present.items() if report.weights}
    columns = list(zip(*known.values(), strict=False))
    different = [
        number for number, column in enumerate(columns) if 0 not in column and len(set(column)) > 1
    ]
    if not different:
        if columns:
            history.equal_at = step
            history.equal_count = len(columns)
        return None
    history.different += 1
    if history.different == 1 and history.patient and not history.equal_at:
        return None
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, weights in known.items():
        groups.setdefault(tuple(weights[number] for number in different), []).append(rank)
    count = (
        f"{len(different)} of {len(columns)} parameters" if len(columns) > 1 else "its parameter"
    )
    first = names[different[0]]
    where = f"{_describe_minority(list(groups.values()))} in {count}, first in {first}"
    if not history.equal_at:
        return UNEQUAL_START.finding(
            _unequal_start_text(present, where, cures), cure=cures.broadcast, where=first
        )
    if history.equal_count and different[0] >= history.equal_count:  # parameters of an added group
        text = (
            f"the ranks hold different weights, and train different models from now on: {where}."
            f" These parameters were added after step {history.equal_at} with different values."
            f" When adding parameters, call {cures.broadcast} before the next step"
        )
        return UNEQUAL_NEW_PARAMETERS.finding(text, cure=cures.broadcast, where=first)
    return DRIFT.finding(
        _drift_text(present, where, history, step, cures), cure=cures.broadcast, where=first
    )


def _unequal_start_text(present: Mapping[int, ReplicaReport], where: str, cures: Cures) -> str:
    text = f"the ranks began with different weights, and train different models: {where}. "
    if cures.certain:
        return text + cures.certain
    if all(report.broadcast for report in present.values()):
        return (
            text
            + "The broadcast sent another model's weights, or some ranks changed theirs after it,"
            " for example by loading a checkpoint on rank 0 only. After the last change call"
            f" {cures.broadcast}"
        )
    return text + f"Nothing was broadcast. Before the first step call {cures.broadcast}"


def _drift_text(
    present: Mapping[int, ReplicaReport], where: str, history: History, step: int, cures: Cures
) -> str:
    text = (
        f"the ranks hold different weights, and train different models from now on: {where}. The"
        f" weights were equal at step {history.equal_at} and differ at step {step}. "
    )
    if cures.certain:
        return text + cures.certain
    steps = {rank: report.steps for rank, report in present.items() if report.steps >= 0}
    if len(set(steps.values())) > 1:
        groups: dict[int, list[int]] = {}
        for rank, count in steps.items():
            groups.setdefault(count, []).append(rank)
        listed = ", ".join(
            f"{count} on {ranks_named(ranks)}" for count, ranks in sorted(groups.items())
        )
        return (
            text + "The likely cause: some ranks skipped optimizer.step() (steps since then:"
            f" {listed}). Skip a step on all ranks or none, for example by a value reduced over"
            f" all ranks. To continue from one rank's weights: {cures.broadcast}"
        )
    causes = [
        "a checkpoint loaded on some ranks after the broadcast",
        "weights or gradients changed on some ranks only",
    ]
    if len(steps) < len(present):
        causes.append("a step skipped on some ranks")
    if not all(report.settings for report in present.values()):
        causes.append("a different learning rate")
    again = cures.broadcast
    if cures.state:
        causes.append("a different optimizer state on some ranks (a checkpoint's momentum)")
        again += f" and {cures.state}"
    return text + (
        f"The likely cause: {' or '.join(causes)}. To make the ranks equal again: {again}"
    )


def _describe_minority(groups: Sequence[Sequence[int]]) -> str:
    """Name the ranks that differ from the majority."""
    majority, *others = sorted(groups, key=lambda ranks: (-len(ranks), ranks[0]))
    if len(majority) == 1 and len(others) > 1:
        return f"all {len(groups)} ranks differ from each other"
    odd = sorted(rank for ranks in others for rank in ranks)
    return (
        f"{ranks_named(odd)} {'differ' if len(odd) > 1 else 'differs'} from {ranks_named(majority)}"
    )
