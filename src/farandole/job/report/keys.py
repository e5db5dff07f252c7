"""Keys of the job's store that ranks and driver share. Agents have their own keys
(``launch.agents``).
"""

from __future__ import annotations

JOB = "job"  # facts about the job, JSON: command or path, slots
FUNCTION = "function"  # pickled, with its arguments
FIRST = "first"  # rank 0's address and a free port there, JSON, for the others
# Set by ranks that have not called ``init()``: the framework that they have loaded, or empty if it
# was already reported.
UNINITIALIZED = "uninitialized"
FINISHED = "finished"  # set by the driver: ranks whose process ended with exit code 0, JSON


def sessions(generation: int, size: int, rank: int) -> str:
    """Return the key of the number of a rank's calls of ``init()``."""
    return f"sessions/{generation}/{size}/{rank}"


def outcome(rank: int) -> str:
    """Return the key of a rank's outcome (``report.outcome``)."""
    return f"outcome/{rank}"


def result(rank: int) -> str:
    """Return the key of a rank's function result, pickled."""
    return f"result/{rank}"


def task(rank: int) -> str:
    """Return the key of the address of a rank's task of TensorFlow, ``host:port``."""
    return f"task/{rank}"


def message(kind: str, rank: int) -> str:
    """Return the key of a rank's message to the user (``report.messages``)."""
    return f"message/{kind}/{rank}"


def away(scope: str, rank: int) -> str:
    """Return the key set by a rank that has joined, so that no parameter server waits for it."""
    return f"away/{scope}/{rank}"


def left(scope: str, rank: int) -> str:
    """Return the key set by a rank that has published its weights, when it ends normally."""
    return f"left/{scope}/{rank}"


def begun(rank: int, path: str) -> str:
    """Return the key set by a rank that has begun a timeline or a log at ``path``."""
    return f"begun/{rank}/{path}"


SERVERS_WANTED = "servers/wanted"  # set by a rank that needs the job's parameter servers


def server(scope: str, index: int) -> str:
    """Return the key of a parameter server's address, JSON.

    ``scope`` is the session of the server; empty for the whole job.
    """
    return f"{servers(scope)}/{index}"


def servers(scope: str) -> str:
    """Return the prefix of all parameter servers' keys."""
    return f"servers/{scope}/at" if scope else "servers/at"


def replica(number: int, place: int) -> str:
    """Return the key of the address of a parameter server's process in an elastic job, JSON.
    ``place``: the number of the process, counted over all processes of server ``number``.
    """
    return f"servers/{number}/process/{place}"


def chain(number: int) -> str:
    """Return the key of the addresses of a parameter server in an elastic job, JSON: the primary,
    then its replicas in the order in which they take over.
    """
    return f"servers/chain/{number}"


NOW = "membership/now"  # the number of the current membership of an elastic job


def membership(number: int) -> str:
    """Return the key of a membership of an elastic job (``elastic.membership``)."""
    return f"membership/{number}"


def first(number: int) -> str:
    """Return the key of the address of rank 0 of a membership, and of a free port there, JSON, for
    torch.distributed's store.
    """
    return f"membership/{number}/first"


def broken(number: int) -> str:
    """Return the key set by the driver when a membership has lost a member."""
    return f"membership/{number}/broken"


def notice(number: int) -> str:
    """Return the key set by the driver when the ranks of a membership have to leave it at their
    next commit: the kind of the change of hosts, a number.
    """
    return f"membership/{number}/notice"


def newcomers(number: int) -> str:
    """Return the key set by the driver when it has started processes that will join the membership
    after ``number``.
    """
    return f"membership/{number}/newcomers"


def ready(process: int) -> str:
    """Return the key set by a process that waits for its next membership, JSON: the number of its
    last membership (0: none), its number of commits, and the ranks there that it could not reach.
    """
    return f"ready/{process}"


RESCUE = "rescue"  # set by the driver when all hosts are leaving: rank 0 writes its commit


def rescued(process: int) -> str:
    """Return the key set by the process of rank 0 when it has followed ``RESCUE``."""
    return f"rescued/{process}"


def leaving(process: int) -> str:
    """Return the key set by a process whose host is leaving (``elastic.notices.Notice``)."""
    return f"leaving/{process}"


def damaged(number: int, commits: int) -> str:
    """Return the key set by a rank when replicas of membership ``number`` were found damaged and
    repaired: their ranks, JSON. ``commits``: the number of commits then.
    """
    return f"damaged/{number}/{commits}"


def straggler(number: int, commits: int) -> str:
    """Return the key set by rank 0 of membership ``number`` when a rank is repeatedly the slowest,
    JSON: its rank, the seconds of a unit there and on the others, and the unit, which is ``step``
    or ``collectives``. ``commits``: the number of commits then.
    """
    return f"straggler/{number}/{commits}"


def ending(process: int) -> str:
    """Return the key set by the driver before it ends a process of an elastic job by a signal."""
    return f"ending/{process}"


def start(process: int) -> str:
    """Return the key of the placement with which a process of an elastic job starts, JSON."""
    return f"start/{process}"
