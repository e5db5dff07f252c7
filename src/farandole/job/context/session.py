"""This process's session in its job, from ``init`` to ``shutdown``, and its properties."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from farandole.core.engine import Engine
from farandole.errors import NotInitializedError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.context import wiring
from farandole.job.context.observers import Observers
from farandole.job.context.set_engines import SetEngines
from farandole.job.report import reporter
from farandole.net.store import StoreClient


class JobSession(NamedTuple):
    """The state of this process between ``init`` and ``shutdown``."""

    placement: Placement
    connection: Connection
    settings: Settings
    engine: Engine
    observers: Observers
    sets: SetEngines


class Joining(NamedTuple):
    """The state of a process that will join a running job when it first has to exchange data.

    ``placement`` is the expected one; ``join`` begins the session.
    """

    placement: Placement
    connection: Connection
    settings: Settings
    join: Callable[[], None]


lock = threading.RLock()
_current: JobSession | None = None
_joining: Joining | None = None
_forked_from: Placement | None = None  # the rank from which this process was forked
# Kept for the life of the process, because outcomes are reported after shutdown too.
_store: StoreClient | None = None
# The membership of this process's last init, and the number of this rank's inits in it.
_number = (-1, 0)


def current() -> JobSession:
    """Return this process's session; a process that is to join a running job joins it now.

    Raises NotInitializedError outside a session.
    """
    if _joining is not None:
        with lock:
            if _joining is not None:
                _joining.join()
    if _current is None:
        raise NotInitializedError(forked=_forked_from is not None)
    return _current


def begin(session: JobSession) -> None:
    """Make ``session`` the current one."""
    global _current, _joining
    _current = session
    _joining = None


def begin_joining(joining: Joining) -> None:
    """Let this process join a running job later."""
    global _joining
    _joining = joining


def is_joining() -> bool:
    """Return whether this process has yet to join its running job."""
    return _joining is not None


def end() -> JobSession | None:
    """Remove and return the current session; None outside one."""
    global _current, _forked_from, _joining
    ended = _current
    _current = _joining = None
    _forked_from = None
    return ended


def forget_in_child() -> None:
    """Forget the session in a forked child (such as a data loader's worker), which is not a
    rank.
    """
    global _current, _forked_from, _joining, _store
    if _joining is not None:
        _forked_from = _joining.placement
    elif _current is not None:
        _forked_from = _current.placement
    _current = _joining = None
    _store = None


def session_id() -> str:
    """Return this session's name: the same on all ranks, and unique among sessions."""
    return f"{_number[0]}.{_number[1]}"


def count_session(placement: Placement, client: StoreClient | None) -> None:
    """Assign a new id to the session that begins now."""
    global _number
    _number = wiring.next_session(placement, client, _number)


def store() -> StoreClient | None:
    """Return the client of the job's store; None without a launcher."""
    return _store


def open_store(placement: Placement, connection: Connection) -> StoreClient:
    """Return the client of the job's store; the first call connects it."""
    wiring.check_store(placement, connection)
    if _store is not None:
        return _store
    client = StoreClient(connection.store, connection.secret)
    use_store(client)
    reporter.install(client, connection.number(placement.rank))
    return client


def use_store(client: StoreClient | None) -> None:
    """Make ``client`` the connection of this process to the job's store."""
    global _store
    _store = client


def has_begun() -> bool:
    """Return whether this process takes part in a job, or has taken part in one."""
    return _current is not None or _number != (-1, 0)


def is_initialized() -> bool:
    """Return whether ``init()`` has been called (and not ``shutdown()`` since); also true in a
    process forked off from a rank.
    """
    return takes_part() or _forked_from is not None


def takes_part() -> bool:
    """Return whether this process can exchange data: false before ``init()``, and in a process
    forked from a rank. True in a process that has yet to join a running job.
    """
    return _current is not None or _joining is not None


def settings() -> Settings:
    """Return this process's settings. Raises NotInitializedError before ``init()``."""
    return (_joining or current()).settings


def placement() -> Placement:
    """Return this process's placement in the job; in a forked process, its parent's placement.

    Raises NotInitializedError before ``init()``.
    """
    return _forked_from or (_joining or current()).placement


def connection() -> Connection:
    """Return this process's connection to the job. Raises NotInitializedError before ``init()``."""
    return (_joining or current()).connection


def rank() -> int:
    """Return this process's rank, from 0."""
    return placement().rank


def size() -> int:
    """Return the number of ranks."""
    return placement().size


def local_rank() -> int:
    """Return this process's local rank on its host, from 0."""
    return placement().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return placement().local_size


def cross_rank() -> int:
    """Return this host's number among the hosts that have this local rank, from 0."""
    return placement().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this local rank."""
    return placement().cross_size


def is_homogeneous() -> bool:
    """Return whether every host runs the same number of ranks."""
    return placement().homogeneous


def shares() -> int:
    """Return the number of shares of the job's fixed global batch; 0 if it has none
    (``--fixed-global-batch``).
    """
    if not takes_part():
        return Connection.from_env().shares
    return connection().shares or (size() if settings().fixed_global_batch else 0)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start writing a timeline to ``file_path`` (on rank 0). HOROVOD_TIMELINE must be set to
    DYNAMIC or a file.

    A timeline in progress is ended first. ``mark_cycles`` marks every negotiation round.
    """
    current().observers.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Stop the timeline; its file is complete when this returns."""
    current().observers.stop_timeline()
