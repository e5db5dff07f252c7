"""The start and end of a session: ``init``, ``shutdown``, and the handling of exit and fork."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farandole.base import log
from farandole.base.contracts import Transport
from farandole.core.engine import Engine
from farandole.core.observe.exchanges import ExchangeCounts
from farandole.core.transports import shm
from farandole.errors import HorovodInternalError, RendezvousError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.rank_variables import PROCESS
from farandole.job.context import (
    communicator,
    environment,
    membership,
    parameter_servers,
    session,
    wiring,
)
from farandole.job.context.malloc import keep_freed_memory
from farandole.job.context.observers import Observers, note_ignored
from farandole.job.context.process_set import (
    ProcessSet,
    forget_all,
    global_process_set,
    hand_over_participants,
    register,
)
from farandole.job.context.session import JobSession
from farandole.job.context.set_engines import SetEngines
from farandole.job.report import reporter

# Each callable returns the failures since its last call that the program has not retrieved.
unread_failures: list[Callable[[], list[HorovodInternalError]]] = []


class JobEnd(NamedTuple):
    """The end of a job that this rank leaves without a failure.

    ``exchanges``: the counts of exchanged data. ``unread``: the errors of asynchronous collectives
    for which the program never waited, by framework.
    """

    rank: int
    size: int
    exchanges: ExchangeCounts
    unread: Sequence[Sequence[HorovodInternalError]]


end_checks: list[Callable[[JobEnd], None]] = []  # registered by the package ``checks``


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job; afterwards ``rank()``, ``size()`` and the collectives work. Repeated calls do
    nothing.

    ``process_sets``: a list of ``ProcessSet`` to register, the same on all ranks; or "dynamic", to
    add some later. ``comm``: None, or all ranks in order, as a list or mpi4py communicator; with
    mpirun also a subset of the ranks, which must all call this. Raises RendezvousError naming the
    ranks that did not arrive within ``--start-timeout`` seconds.
    """
    with session.lock:
        if session.takes_part():
            return
        session.end()  # this is the parent's session in a forked process
        environment.forget_outer_job(os.environ)
        placement, connection, settings = _find_job(comm)
        note_ignored()
        if process_sets == "dynamic":
            settings = settings.replace(dynamic_process_sets=True)
            process_sets = None
        _check_process_sets(process_sets)
        if placement.size > 1:
            keep_freed_memory()
        if connection.member >= 0 and settings.preemption_notice:
            # Imported here because most jobs have no source of notices.
            from farandole.job.context import departure

            departure.watch(placement, connection, settings)
        if connection.member >= 0 and not membership.is_member(placement, connection):
            _join_later(placement, connection, settings, process_sets or ())
        else:
            _begin(placement, connection, settings, process_sets or ())


def _join_later(
    placement: Placement,
    connection: Connection,
    settings: Settings,
    process_sets: Sequence[ProcessSet],
) -> None:
    """Join the running job at this process's first exchange of data, so that the other ranks
    continue to train while its program is still preparing.
    """
    global_process_set.ranks = list(range(placement.size))
    membership.expect(placement)
    begin = functools.partial(_begin, placement, connection, settings, process_sets)
    session.begin_joining(session.Joining(placement, connection, settings, begin))


def _begin(
    placement: Placement,
    connection: Connection,
    settings: Settings,
    process_sets: Sequence[ProcessSet],
) -> None:
    """Connect this process with the other ranks, and begin its session."""
    if connection.member >= 0:
        placement, transport = _join(placement, connection, settings)
    else:
        transport = _connect(placement, connection, settings)
    enter(placement, settings, transport, connection)
    try:
        for process_set in process_sets:
            register(process_set)
    except BaseException:
        shutdown()  # so that a later init() registers its own sets
        raise


def _find_job(comm: Any) -> tuple[Placement, Connection, Settings]:
    """Return the job from this process's environment.

    If a cluster started the process without a driver, the ranks' agreed values are included.
    """
    placement = Placement.from_env()
    connection = Connection.from_env()
    settings = Settings.from_env()
    cluster_job = None
    if not environment.has_placement(os.environ):
        cluster_job = environment.find_cluster(os.environ)
    if cluster_job and communicator.is_part(comm, cluster_job.placement):
        cluster_job = cluster_job.among(comm, settings)
        comm = None
    rank = cluster_job.placement.rank if cluster_job else placement.rank
    log.configure(settings.log_level, who=f"rank {rank}", hide_time=settings.log_hide_time)
    if cluster_job:
        placement, connection = cluster_job.join(settings)
    elif warning := environment.lost_placement(os.environ):
        log.logger.warning(warning)
    environment.check_rank(placement)
    communicator.check(comm, placement)
    return placement, connection, settings


def _check_process_sets(process_sets: Any) -> None:
    for process_set in process_sets or ():
        if not isinstance(process_set, ProcessSet):
            raise ValueError(
                f"process_sets={process_sets!r}: {process_set!r} is not a ProcessSet. Pass sets"
                " like ProcessSet([0, 1]), which you can then pass to collectives, or"
                ' "dynamic"'
            )


def _join(
    placement: Placement, connection: Connection, settings: Settings
) -> tuple[Placement, Transport]:
    """Return this process's placement in the next membership whose ranks could connect, and the
    transport between them.
    """
    client = session.open_store(placement, connection)
    while True:
        placement = membership.await_placement(client, connection, settings)
        try:
            transport = _connect(placement, connection, settings)
            membership.find_store(client, placement)
            return placement, transport
        except (HorovodInternalError, RendezvousError, OSError) as error:
            # The loss of a member is reported by the driver. Only this rank can report that its
            # network does not reach another member.
            say = log.logger.info
            if isinstance(error, RendezvousError):
                say = log.logger.warning
                membership.note_unreached(error.unreached)
            say("membership %d could not be formed: %s", placement.generation, error)


def _connect(placement: Placement, connection: Connection, settings: Settings) -> Transport:
    has_store = connection.store or placement.size > 1
    client = session.open_store(placement, connection) if has_store else None
    session.count_session(placement, client)
    # Even the only rank opens the store, through which it reports its end to the driver.
    if client is None or placement.size == 1:
        return shm.connect(0, 1, "", session.session_id())
    return wiring.connect(placement, connection, settings, client, session.session_id())


def enter(
    placement: Placement, settings: Settings, transport: Transport, connection: Connection
) -> None:
    """Begin this process's session with ``placement`` in the job, over ``transport``."""
    try:
        observers = Observers(
            placement, connection, settings, session.store(), session.session_id()
        )
    except BaseException as error:
        transport.abort(f"rank {placement.rank} could not initialize: {error}")
        transport.close()
        raise

    def engine_of(part: Transport, ranks: tuple[int, ...], number: int) -> Engine:
        return Engine(part, settings, observers.of(part, ranks, f"process_set.{number}/"), ranks)

    engine = Engine(transport, settings, observers.of(transport))
    observers.attach(engine)
    hand_over_participants(global_process_set, engine)
    reporter.caught(engine.failures)
    global_process_set.ranks = list(range(placement.size))
    membership.commit_together()
    session.begin(
        JobSession(
            placement=placement,
            connection=connection,
            settings=settings,
            engine=engine,
            observers=observers,
            sets=SetEngines(engine, engine_of),
        )
    )


def shutdown() -> None:
    """Leave the job. Collectives in flight fail, here and on the other ranks. ``init()`` may be
    called again.
    """
    with session.lock:
        ended = session.end()
        servers = parameter_servers.take_access()
    forget_all()
    if ended is None:
        return
    # Whether an exception is being handled, which the program may raise again or not.
    handles = sys.exc_info()[0] is not None
    failed = reporter.failed()
    if servers is not None:
        servers.disconnect(failed)
    if not ended.engine.ended and not handles and not failed:
        end = JobEnd(
            rank=ended.placement.rank,
            size=ended.placement.size,
            exchanges=ended.observers.exchange_counts,
            unread=[failures for unread in unread_failures if (failures := unread())],
        )
        for check in end_checks:
            check(end)
        if end.rank == 0 and ended.settings.commit_dir:
            _report_missing_commits(ended.settings.commit_dir)
    ended.sets.shutdown()
    ended.observers.close()
    if servers is not None and handles:
        parameter_servers.keep_until_exit(servers)
    elif servers is not None:
        servers.close(reporter.failed())


def _report_missing_commits(folder: str) -> None:
    if "farandole.core.api.commits.keeper" not in sys.modules:
        log.logger.warning(
            "the program wrote no commits to %s (--commit-dir), because it has no elastic state."
            " Train in a function with hvd.elastic.run or hvd.elastic.auto, or with Keras's fit and"
            " a DistributedOptimizer",
            folder,
        )


def _leave() -> None:
    shutdown()
    parameter_servers.close_kept(failed=reporter.failed())
    bootstrap = sys.modules.get("farandole.job.bootstrap")
    if bootstrap is not None:
        bootstrap.leave(failed=reporter.failed())
    store = session.store()
    if store is not None:  # otherwise Python may warn about an open socket
        store.close()


def _forget() -> None:
    session.forget_in_child()
    parameter_servers.forget_in_child()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)

if PROCESS in os.environ:
    reporter.install_early()
