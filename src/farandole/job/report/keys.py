"""The keys of the job's store that ranks and driver share. Agents have keys of their own
(``launch.agents``).
"""

from __future__ import annotations

JOB = "job"  # the facts about it, JSON: command or path, slots
FUNCTION = "function"  # pickled, with its arguments
FIRST = "first"  # the address of rank 0's host, and a port that is free there, JSON, for the others


FINISHED = "finished"  # set by the driver: ranks whose process has ended with exit code 0, JSON


def outcome(rank: int) -> str:
    """How a rank ended (``report.outcome``)."""
    return f"outcome/{rank}"


def result(rank: int) -> str:
    """The value that the function returned on a rank, pickled."""
    return f"result/{rank}"


def message(kind: str, rank: int) -> str:
    """Something for those who watch (``report.messages``)."""
    return f"message/{kind}/{rank}"


def away(scope: str, rank: int) -> str:
    """Set if a rank has joined, so that no parameter server waits for it."""
    return f"away/{scope}/{rank}"


def left(scope: str, rank: int) -> str:
    """Set by a rank that has shown its weights to others, when it ends in order."""
    return f"left/{scope}/{rank}"


def begun(rank: int, path: str) -> str:
    """Set by a rank that has begun a timeline or a log there."""
    return f"begun/{rank}/{path}"


SERVERS_WANTED = "servers/wanted"  # set by a rank that needs the job's parameter servers


def server(scope: str, index: int) -> str:
    """The address of a parameter server, JSON. ``scope``: of one session in the job; empty: of the
    whole job.
    """
    return f"{servers(scope)}/{index}"


def servers(scope: str) -> str:
    """What the keys of all parameter servers begin with."""
    return f"servers/{scope}/at" if scope else "servers/at"
