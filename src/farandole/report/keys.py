"""The keys of the job's store that ranks and driver share. Agents have keys of their own (``launch.agents``)."""

from __future__ import annotations

JOB = "job"  # the facts about it, JSON: command or path, slots
FUNCTION = "function"  # pickled, with its arguments


def outcome(rank: int) -> str:
    """How a rank ended (``report.outcome``)."""
    return f"outcome/{rank}"


def result(rank: int) -> str:
    """The value that the function returned on a rank, pickled."""
    return f"result/{rank}"


def message(kind: str, rank: int) -> str:
    """Something for those who watch (``report.messages``)."""
    return f"message/{kind}/{rank}"
