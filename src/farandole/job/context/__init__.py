"""This process's place in the job: init, shutdown, rank and the rest.

The one room that assembles store, transport and engine. Without a launcher ``init()`` gives one
rank and no network.
"""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from farandole.base import log
from farandole.base.contracts import Transport
from farandole.core.engine import Engine
from farandole.core.transports import shm
from farandole.errors import HorovodInternalError, NotInitializedError, RequestError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.rank_variables import PROCESS
from farandole.job.context import communicator, environment, wiring
from farandole.job.context.malloc import keep_freed_memory
from farandole.job.context.observers import Observers, note_ignored
from farandole.job.context.process_sets import Sets
from farandole.job.report import reporter
from farandole.net.store import StoreClient

if TYPE_CHECKING:
    from farandole.core.gossip.peer_group import PeerServer
    from farandole.core.groups.messages import Messages
    from farandole.core.observe.exchanges import ExchangeCounts
    from farandole.core.ps.client import Servers
    from farandole.job.context.server_access import ServerAccess


class _Place(NamedTuple):
    placement: Placement
    connection: Connection
    settings: Settings
    engine: Engine
    observers: Observers
    sets: Sets


_WATCHED = 16  # broadcasts whose parameters are looked at once more at the end

_lock = threading.RLock()
_place: _Place | None = None
_inherited: Placement | None = None  # of the rank that this process was forked off from
# one for the life of the process: outcomes are reported after shutdown, too
_store: StoreClient | None = None
_servers: ServerAccess | None = None  # of this stay, once a strategy needs them
_serving: list[ServerAccess] = []  # of stays that ended while an exception was handled
# the membership in which this process initialised last, and how often this rank had done it then
_stay = (-1, 0)


class ProcessSet:
    """Some of the ranks. Register it with ``add_process_set`` or ``init(process_sets=[...])``
    before use.

    ``ranks_or_comm``: ranks as a list, or an mpi4py communicator. ``process_set_id``: its number
    while it is registered, else None. ``ranks``: sorted global ranks; None until ``init()`` for a
    communicator. Several ranks may each give their own communicator, as ``Split`` makes them.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = ranks_or_comm if hasattr(ranks_or_comm, "Get_group") else None
        if self.mpi_comm is not None:
            self.ranks = communicator.members(self.mpi_comm, rank()) if takes_part() else None
            return
        try:
            self.ranks = sorted(operator.index(number) for number in ranks_or_comm)
        except TypeError:
            raise ValueError(
                "ProcessSet should be constructed either with a list of process ranks or with an"
                f" mpi4py communicator (got {ranks_or_comm!r})"
            ) from None

    def _registered(self) -> tuple[int, ...]:
        ranks = None if self.process_set_id is None else _entered().sets.ranks(self.process_set_id)
        if ranks is None:
            _entered()
            raise ValueError("Process set does not exist or has not been registered.")
        return ranks

    def size(self) -> int:
        """How many ranks it has."""
        return len(self._registered())

    def rank(self) -> int:
        """This process's number among its ranks. Raises ValueError outside it."""
        ranks = self._registered()
        if rank() not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(rank())

    def included(self) -> bool:
        """Is this process one of its ranks?"""
        return rank() in self._registered()

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks},"
            f" mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


_registered: set[ProcessSet] = set()  # in this stay
# each returns the failures since its last call
unheard_failures: list[Callable[[], list[HorovodInternalError]]] = []


class JobEnd(NamedTuple):
    """A job that this rank leaves without a failure. ``unheard``: the errors of asynchronous
    collectives that the program never waited for, by framework.
    """

    rank: int
    size: int
    exchanges: ExchangeCounts
    unheard: Sequence[Sequence[HorovodInternalError]]


end_checks: list[Callable[[JobEnd], None]] = []  # of the room ``checks``
global_process_set = ProcessSet([])
global_process_set.process_set_id, global_process_set.ranks = 0, None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job: afterwards ``rank()``, ``size()`` and the collectives work. Does nothing when
    already done.

    ``process_sets``: a list of ``ProcessSet`` to register, the same on all ranks; or "dynamic", to
    add some later. ``comm``: None, or all ranks in their order, as a list or mpi4py communicator;
    by mpirun also some: they call this. Raises RendezvousError naming the ranks that did not come
    within ``--start-timeout`` seconds.
    """
    global _inherited
    with _lock:
        if _place is not None:
            return
        _inherited = None
        environment.forget_outer_job(os.environ)
        placement, connection, settings = (
            Placement.from_env(),
            Connection.from_env(),
            Settings.from_env(),
        )
        found = None if environment.told(os.environ) else environment.found(os.environ)
        if found and communicator.is_part(comm, found.placement):
            found, comm = found.among(comm, settings), None
        rank = found.placement.rank if found else placement.rank
        log.configure(settings.log_level, who=f"rank {rank}", hide_time=settings.log_hide_time)
        if found:
            placement, connection = found.join(settings)
        elif warning := environment.lost(os.environ):
            log.logger.warning(warning)
        environment.check_rank(placement)
        communicator.check(comm, placement)
        note_ignored()
        if process_sets == "dynamic":
            settings, process_sets = settings.replace(dynamic_process_sets=True), None
        wrong = next(
            (each for each in process_sets or () if not isinstance(each, ProcessSet)), None
        )
        if wrong is not None:
            raise ValueError(
                f"process_sets={process_sets!r}: {wrong!r} is no ProcessSet. Make one,"
                ' ProcessSet([0, 1]), which collectives take as well; or give "dynamic"'
            )
        if placement.size > 1:
            keep_freed_memory()
        transport = _connect(placement, connection, settings)
        _enter(placement, settings, transport, connection)
        try:
            for process_set in process_sets or ():
                _add(process_set)
        except BaseException:
            shutdown()  # the next init() is to register what it is given
            raise


def _enter(
    placement: Placement, settings: Settings, transport: Transport, connection: Connection
) -> None:
    """Take ``placement`` in the job, over ``transport``."""
    global _place
    try:
        observers = Observers(placement, connection, settings, _store, scope())
    except BaseException as error:
        transport.abort(f"rank {placement.rank} could not initialise: {error}")
        transport.close()
        raise

    def engine_of(part: Transport, ranks: tuple[int, ...], number: int) -> Engine:
        return Engine(part, settings, observers.of(part, ranks, f"process_set.{number}/"), ranks)

    engine = Engine(transport, settings, observers.of(transport))
    observers.attach(engine)
    reporter.caught(engine.failures)
    global_process_set.ranks = list(range(placement.size))
    _place = _Place(placement, connection, settings, engine, observers, Sets(engine, engine_of))


def shutdown() -> None:
    """Leave the job. Collectives in flight fail, here and on the other ranks. ``init()`` may be
    called again.
    """
    global _inherited, _place, _servers
    with _lock:
        place, _place, _inherited = _place, None, None
        servers, _servers = _servers, None
    while _registered:
        _registered.pop().process_set_id = None
    if place is not None:
        handles = sys.exc_info()[0] is not None  # an exception, which it may raise again or not
        if servers is not None:
            servers.say_bye(reporter.failed())
        if not place.engine.ended and not handles and not reporter.failed():
            end = JobEnd(
                place.placement.rank,
                place.placement.size,
                place.observers.exchange_counts,
                [failures for each in unheard_failures if (failures := each())],
            )
            for check in end_checks:
                check(end)
        place.sets.shutdown()
        place.observers.close()
        if servers is not None and handles:
            # until this process ends: then it is known whether it has failed
            _serving.append(servers)
        elif servers is not None:
            servers.close(reporter.failed())


def servers() -> Servers:
    """The job's parameter servers; they are started when the first rank asks. Raises SettingsError
    in a process that no launcher started, RendezvousError if they do not come.
    """
    return _server_access().open(_store)


def peer_server() -> PeerServer:
    """What this rank shows of its weights to others. Raises SettingsError in a process that no
    launcher started.
    """
    return _server_access().peer(_store)


def leave_servers() -> None:
    """This rank has no more data: ranks that exchange by parameter servers do not wait for it until
    it pushes again.
    """
    if size() > 1 and _store is not None:
        _server_access().leave(_store)


def return_to_servers() -> None:
    """All ranks have joined: this one may have data again."""
    if size() > 1 and _store is not None:
        _server_access().come_back(_store)


def _server_access() -> ServerAccess:
    global _servers
    from farandole.job.context.server_access import ServerAccess  # here: a plain job has none

    with _lock:
        if _servers is None:
            place = _entered()
            _servers = ServerAccess(place.placement, place.settings, scope())
        return _servers


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register ``process_set``, or a list of ranks, and return the set. All ranks must call this,
    with the same sets in the same order; returns when all have.

    Raises ValueError for a set that is there already, or without HOROVOD_DYNAMIC_PROCESS_SETS=1.
    """
    _check_dynamic()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _add(added)
    return added


def process_set_among(ranks: Sequence[int]) -> ProcessSet:
    """The registered set of ``ranks``; it is registered if there is none yet, also where sets are
    not dynamic. Called by all ranks, in the same order.
    """
    wanted = sorted(ranks)
    if wanted == process_sets()[0]:
        return global_process_set
    for registered in _registered:  # the object itself, which hears when the set is taken back
        if registered.ranks == wanted:
            return registered
    process_set = ProcessSet(wanted)
    _add(process_set)
    return process_set


def messages_among(ranks: Sequence[int]) -> Messages | None:
    """What sends messages among ``ranks``, past collectives; None on a rank outside. The same each
    time, unless it has failed. Called by all ranks, in the same order.
    """
    return _entered().sets.messages(ranks)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take ``process_set`` back, on all ranks; False if it is not registered, or is that of all
    ranks.
    """
    _check_dynamic()
    number, sets = process_set.process_set_id, _entered().sets
    remove = sets.remove if process_set.mpi_comm is None else sets.remove_each
    if number is None or not remove(number):
        return False
    process_set.process_set_id = None
    _registered.discard(process_set)
    return True


def process_sets() -> dict[int, list[int]]:
    """The registered sets: ranks by id."""
    return _entered().sets.all()


def _add(process_set: ProcessSet) -> None:
    sets = _entered().sets
    if process_set.mpi_comm is not None:  # each rank may have one of its own
        process_set.ranks = communicator.members(process_set.mpi_comm, rank())
        process_set.process_set_id = sets.add_each(process_set.ranks)
    else:
        process_set.process_set_id = sets.add(process_set.ranks or [])
    _registered.add(process_set)


def _check_dynamic() -> None:
    if not _entered().settings.dynamic_process_sets:
        raise ValueError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding/removing process sets after Horovod"
            " initialization."
        )


def add_parameters_broadcast(
    elements: int, unchanged: Callable[[], bool | None] | None = None
) -> None:
    """All ranks were given the same parameters, so many numbers: training is expected to begin.
    ``unchanged`` says at the end whether they are still the same, so that there was none; None if
    it cannot know.
    """
    counts = _entered().observers.exchange_counts
    counts.add_broadcast(elements)
    if unchanged is not None and len(counts.unchanged) < _WATCHED:
        counts.unchanged.append(unchanged)


def parameters_broadcast() -> int:
    """How many numbers all ranks were given alike."""
    return _entered().observers.exchange_counts.broadcast


def largest_exchange(*, by_program: bool = False) -> int:
    """How many numbers the largest piece had that ranks have put together; ``by_program``: not by
    an optimizer.
    """
    counts = _entered().observers.exchange_counts
    return counts.by_program if by_program else counts.exchanged


def exchanges_no_gradients() -> bool:
    """Did the ranks begin alike, and exchange no gradients since?"""
    return _entered().observers.exchange_counts.no_gradients(size())


def scope() -> str:
    """The name of this stay in the job, from ``init`` to ``shutdown``: the same on all ranks, and
    of no other stay.
    """
    return f"{_stay[0]}.{_stay[1]}"


def exchange_counts() -> ExchangeCounts:
    """Return the counts of what the ranks have exchanged since ``init()``."""
    return _entered().observers.exchange_counts


def skip_exchange_check() -> None:
    """Gradients are exchanged where the engine cannot see it, or the user was told already that
    they are not.
    """
    _entered().observers.exchange_counts.skipped = True


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to write a timeline to ``file_path`` (on rank 0). Needs HOROVOD_TIMELINE to be set, to
    DYNAMIC or a file.

    One that is being written is ended first; ``mark_cycles`` marks every round of agreement.
    """
    _entered().observers.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline; its file is complete when this returns."""
    _entered().observers.stop_timeline()


def _entered() -> _Place:
    if _place is None:
        raise NotInitializedError(forked=_inherited is not None)
    return _place


def _forget() -> None:
    """A forked child (a data loader's worker, say) is no rank: it must neither join in nor say
    goodbye.
    """
    global _inherited, _place, _store, _servers
    _inherited = _inherited if _place is None else _place.placement
    _place = _store = _servers = None
    _serving.clear()


def _leave() -> None:
    shutdown()
    while _serving:
        _serving.pop().close(reporter.failed())
    surroundings = sys.modules.get("farandole.job.bootstrap")
    if surroundings is not None:
        surroundings.leave(failed=reporter.failed())
    if _store is not None:  # where warnings are shown, Python would tell of an open socket
        _store.close()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)


def is_initialized() -> bool:
    """Has ``init()`` been called (and not ``shutdown()`` since)? True, too, in a process forked off
    from a rank.
    """
    return _place is not None or _inherited is not None


def takes_part() -> bool:
    """Can this process exchange anything? Not before ``init()``, and not where it was forked off
    from a rank.
    """
    return _place is not None


def changes_before(process_set: ProcessSet) -> int:
    """A number of a registered set that no other set of this stay has, or had."""
    return _entered().sets.changes_before(process_set.process_set_id or 0)


def engine(process_set: ProcessSet = global_process_set) -> Engine:
    """The engine of a set of ranks; of all, if none is given.

    Raises NotInitializedError before ``init()``; RequestError if the set is not registered, or this
    rank outside it.
    """
    place = _place or _entered()
    if process_set is global_process_set:
        return place.engine
    number = process_set.process_set_id
    if number is None or place.sets.ranks(number) is None:
        raise RequestError("Process set provided does not exist, or has not been registered.")
    found = place.sets.engine(number)
    if found is None:
        raise RequestError(
            f"Rank {place.placement.rank} is not a member of the provided process set."
        )
    return found


def settings() -> Settings:
    """The settings of this process. Raises NotInitializedError before ``init()``."""
    return _entered().settings


def placement() -> Placement:
    """Who this process is in the job, or the one it was forked off from. NotInitializedError before
    ``init()``.
    """
    return _inherited or _entered().placement


def connection() -> Connection:
    """How this process reaches its job. Raises NotInitializedError before ``init()``."""
    return _entered().connection


def rank() -> int:
    """This process's number among all, from 0."""
    return placement().rank


def size() -> int:
    """How many processes there are."""
    return placement().size


def local_rank() -> int:
    """This process's number among those of its host, from 0."""
    return placement().local_rank


def local_size() -> int:
    """How many processes run on this host."""
    return placement().local_size


def cross_rank() -> int:
    """This host's number among the hosts that have this local rank, from 0."""
    return placement().cross_rank


def cross_size() -> int:
    """How many hosts have this local rank."""
    return placement().cross_size


def is_homogeneous() -> bool:
    """True if every host runs the same number of processes."""
    return placement().homogeneous


def store() -> StoreClient | None:
    """The job's store; None without a launcher."""
    return _store


def _connect(placement: Placement, connection: Connection, settings: Settings) -> Transport:
    global _stay
    client = _open_store(placement, connection) if connection.store or placement.size > 1 else None
    _stay = wiring.stay(placement, client, _stay)
    # a driver is told how this rank ends, also if it is the only one
    if client is None or placement.size == 1:
        return shm.connect(0, 1, "", scope())
    return wiring.connect(placement, connection, settings, client, scope())


def _open_store(placement: Placement, connection: Connection) -> StoreClient:
    global _store
    wiring.check_store(placement, connection)
    if _store is None:
        _store = StoreClient(connection.store, connection.secret)
        reporter.install(_store, placement.rank)
    return _store


if PROCESS in os.environ:
    reporter.install_early()
