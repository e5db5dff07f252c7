"""A mistake of a program that a check has found: the same object in the log and in an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

_KEPT = 100  # findings of one process

Error = TypeVar("Error", bound=Exception)


class Finding(NamedTuple):
    """``code``: of the catalogue, stable. ``level``: of the log. ``text``: the mistake, with ranks
    and numbers. ``cure``: the change to make. ``where``: the parameter, line or file, if there is
    one.
    """

    code: str
    level: str
    text: str
    cure: str
    where: str = ""

    @property
    def message(self) -> str:
        """The line that users see."""
        return f"{self.text} [{self.code}]"


class FindingKind(NamedTuple):
    """A kind of finding: an entry of the catalogue."""

    code: str
    title: str
    meaning: str
    cure: str
    level: str = "warning"

    def finding(self, text: str, *, cure: str = "", where: str = "") -> Finding:
        """Return a finding of this kind. ``cure``: in the words of the user's framework."""
        return Finding(self.code, self.level, text, cure or self.cure, where)


_findings: deque[Finding] = deque(maxlen=_KEPT)


def record(finding: Finding) -> None:
    """Keep a finding of this process."""
    _findings.append(finding)


def findings() -> tuple[Finding, ...]:
    """Return the latest findings of this process, in the order in which they were found."""
    return tuple(_findings)


def error_of(kind: type[Error], found: Sequence[Finding]) -> Error:
    """Return an error with the messages of ``found``, which has them as ``findings``. Keeps them as
    findings of this process.
    """
    for finding in found:
        record(finding)
    error = kind("; ".join(finding.message for finding in found))
    error.findings = tuple(found)  # type: ignore[attr-defined]
    return error
