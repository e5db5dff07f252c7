"""Reports of findings: a line in the log or, with ``--check raise``, an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.base.log import logger
from farandole.checks.finding import Finding, error_of, record
from farandole.checks.program_line import program_line
from farandole.errors import RanksDifferError
from farandole.job import context

if TYPE_CHECKING:
    from farandole.core.engine import Engine

_logged_once: set[str] = set()  # codes and places


def report(engine: Engine, found: Sequence[Finding]) -> None:
    """Log the findings of all ranks on rank 0, or raise RanksDifferError on all ranks, depending on
    ``--check``.
    """
    report_own(found, silent=engine.rank != 0)


def report_own(found: Sequence[Finding], *, silent: bool = False) -> None:
    """Log the findings of this rank, or raise RanksDifferError, depending on ``--check``.
    ``silent``: whether another rank logs them.
    """
    mode = context.settings().check
    # A rank with ``--check off`` takes part in comparisons, but reports nothing.
    if not found or mode == "off":
        return
    found = [_placed(finding) for finding in found]
    if mode == "raise":
        raise error_of(RanksDifferError, found)
    for finding in found:
        if silent:
            record(finding)
        else:
            warn(finding)


def warn(finding: Finding) -> None:
    """Log a finding, regardless of the value of ``--check``."""
    finding = _placed(finding)
    record(finding)
    getattr(logger, finding.level)("%s", finding.message)


def warn_once(finding: Finding) -> None:
    """Log a finding, unless this process has logged one of the same code and place."""
    key = f"{finding.code} {finding.where}"
    if key not in _logged_once:
        _logged_once.add(key)
        warn(finding)


def warn_unless_off(finding: Finding) -> None:
    """Log a finding once, unless ``--check off`` is set."""
    if context.settings().check != "off":
        warn_once(finding)


def _placed(finding: Finding) -> Finding:
    """Return the finding with the program's current line."""
    return finding if finding.at else finding._replace(at=program_line())
