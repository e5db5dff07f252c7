"""A mistake in a program, found by a check and used by both the log and errors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from farandole.job.config.rank_variables import RUN_VARIABLE

_KEPT = 100  # findings of one process

Error = TypeVar("Error", bound=Exception)


class Finding(NamedTuple):
    """A mistake in a program.

    ``code``: the stable code from the catalogue. ``level``: the log level. ``text``: the mistake,
    with ranks and numbers. ``cure``: the change to make. ``where``: the parameter, line or file, if
    any. ``at``: the program's line when the mistake was found ("train.py:12"); empty if unknown.
    """

    code: str
    level: str
    text: str
    cure: str
    where: str = ""
    at: str = ""

    @property
    def message(self) -> str:
        """The line that users see."""
        at = f" (at {self.at})" if self.at else ""
        return f"{self.text}{at} [{self.code}]"


class FindingKind(NamedTuple):
    """A kind of finding: an entry of the catalogue."""

    code: str
    title: str
    meaning: str
    cure: str
    level: str = "warning"

    def finding(self, text: str, *, cure: str = "", where: str = "") -> Finding:
        """Return a finding of this kind. ``cure``: in the terms of the user's framework."""
        return Finding(self.code, self.level, text, cure or self.cure, where)


_findings: deque[Finding] = deque(maxlen=_KEPT)


def record(finding: Finding) -> None:
    """Record a finding for this process and for its run, if any."""
    _findings.append(finding)
    if os.environ.get(RUN_VARIABLE):
        # imported here because most jobs leave no run
        from farandole.job.tracking import tracker

        if (run := tracker.current()) is not None:
            run.record(tracker.FINDING, **finding._asdict())


def findings() -> tuple[Finding, ...]:
    """Return the latest findings of this process, in the order in which they were found."""
    return tuple(_findings)


def error_of(kind: type[Error], found: Sequence[Finding]) -> Error:
    """Return an error with the messages of ``found`` and an attribute ``findings``. Record the
    findings for this process.
    """
    for finding in found:
        record(finding)
    error = kind("; ".join(finding.message for finding in found))
    error.findings = tuple(found)  # type: ignore[attr-defined]
    return error
