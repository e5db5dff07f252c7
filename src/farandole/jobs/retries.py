"""The decision whether to retry a failed run.

As in the restart agent of NVIDIA's Resiliency Extension, the domain of a failure (the program or
the machines) is separate from whether a retry may recover from it. A program that fails twice for
the same reason, without progress in between, is not started a third time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

WORKLOAD, INFRASTRUCTURE, UNKNOWN = "workload", "infrastructure", "unknown"
MOST_PREEMPTIONS = 100  # machine failures before a run is abandoned
# Errors of the program that a retry cannot fix.
_HOPELESS = (
    "SyntaxError",
    "IndentationError",
    "ModuleNotFoundError",
    "ImportError",
    "NameError",
    "SettingsError",
)
_EXIT_NOT_STARTED = (126, 127)  # exit codes of a shell: cannot be executed, not found


class AttemptEnd(NamedTuple):
    """The end of one attempt of a run.

    - ``cause``: The explanation for the user. The last line may name an exception.
    - ``domain``: ``WORKLOAD``, ``INFRASTRUCTURE`` (a lost host, a preemption, a killed runner) or
      ``UNKNOWN``.
    - ``progress``: The highest training step that the attempt reported; -1 for none.
    - ``exit_code``: The exit code of the failed rank, or None.
    """

    cause: str
    domain: str
    progress: int = -1
    exit_code: int | None = None


class Decision(NamedTuple):
    """A decision about another attempt, with the reason for the user."""

    again: bool
    reason: str


def decide(retries: int, history: Sequence[AttemptEnd]) -> Decision:
    """Return the decision after the last of the failed attempts in ``history``.

    ``retries``: the user's number of retries for failures of the program.
    """
    last = history[-1]
    if last.domain == INFRASTRUCTURE:
        interrupted = sum(each.domain == INFRASTRUCTURE for each in history)
        if interrupted > MOST_PREEMPTIONS:
            return Decision(False, f"the machines failed {interrupted} times")
        return Decision(True, "the machines failed, not the program")
    counted = [each for each in history if each.domain != INFRASTRUCTURE]
    if len(counted) > retries:
        return Decision(False, f"all {retries} retries are used" if retries else "")
    if why := _hopeless(last):
        return Decision(False, f"a retry cannot help: {why}")
    if len(counted) > 1 and _same_failure(counted[-2], last):
        return Decision(False, "the program failed twice for the same reason without progress")
    return Decision(True, f"attempt {len(counted)} of {retries + 1} failed")


def _hopeless(end: AttemptEnd) -> str:
    if end.exit_code in _EXIT_NOT_STARTED:
        return "the command cannot be executed"
    kind = error_type(end.cause)
    return f"{kind} is a mistake in the program" if kind in _HOPELESS else ""


def _same_failure(before: AttemptEnd, after: AttemptEnd) -> bool:
    return root(before) == root(after) and after.progress <= before.progress


def root(end: AttemptEnd) -> tuple[str, str, int | None]:
    """Return the identity of a failure: exception, place in the program and exit code."""
    places = re.findall(r'File "([^"]+)", line (\d+)', end.cause)
    place = ":".join(places[-1]) if places else ""
    return error_type(end.cause), place, end.exit_code


def error_type(cause: str) -> str:
    """Return the name of the last exception in a cause, without its module."""
    found = re.findall(r"(?m)^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit))\b", cause)
    if not found:
        found = re.findall(r"\b(\w+(?:Error|Exception))\b", cause)
    return found[-1] if found else ""
