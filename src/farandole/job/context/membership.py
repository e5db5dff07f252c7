"""This process's view of the memberships of an elastic job: waiting, joining, and leaving."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base import log
from farandole.base.log import logger
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.engine import Entry
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import variables
from farandole.job.config.torchrun import torch_variables
from farandole.job.context import parameter_servers, session
from farandole.job.report import keys
from farandole.net.store import StoreClient

if TYPE_CHECKING:
    from farandole.job.elastic.membership import Membership

# Called, on a separate thread, when all hosts of an elastic job are leaving.
rescues: list[Callable[[], object]] = []
NOTICE_SECONDS = 0.05  # between two queries for changes of hosts, so that short steps stay short
NEWCOMERS = 60.0  # seconds to wait for processes that are starting, before none is expected
_FOREVER = 1e8  # seconds: the driver decides how long processes wait for each other
_AGREEMENT, _CHANGES = "elastic.agreement", "elastic.changes"


class ObjectNames:
    """Names for unnamed objects of elastic programs, equal on staying and new ranks.

    Objects that are created before the call of ``elastic.run``'s function are counted over the life
    of the process: a rank that stays keeps them, and a new rank creates them in the same order.
    Objects that the function itself creates are counted from 1 in each call, since all ranks call
    it again.
    """

    def __init__(self) -> None:
        self._before = itertools.count(1)
        self._within: Iterator[int] | None = None

    def next(self) -> str:
        """Return the name of the object that is created now."""
        if self._within is not None:
            return f"run.{next(self._within)}"
        return f"{next(self._before)}"

    @property
    def is_within(self) -> bool:
        """True during a call of the function."""
        return self._within is not None

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Count objects from 1 during a call of the function."""
        self._within = itertools.count(1)
        try:
            yield
        finally:
            self._within = None


class _Participation:
    """The state of this process in its job.

    - ``number``: The number of the last membership that it has tried to join; 0 for none.
    - ``commits``: The number of commits of its state; 0 before its first commit or completed
      synchronization.
    - ``agreed``: The number of commits of the state that it receives in a synchronization.
    - ``failures``: The greatest number of equal failures in a row of any rank.
    - ``lost``: The number of commits of a state that no member still has; 0 if a member has it.
    - ``unreached``: The ranks of membership ``number`` whose hosts it could not reach.
    - ``expected``: The placement that its program sees before it has joined; None afterwards.
    - ``asked``: The time of its last query for changes of hosts, in seconds.
    - ``alone``: The session in which it commits without the other ranks; empty for none.
    - ``names``: The names for its unnamed objects.
    - ``apart``: The objects whose state may differ from the state of other ranks.
    """

    def __init__(self) -> None:
        self.number = 0
        self.commits = 0
        self.agreed = 0
        self.failures = 0
        self.lost = 0
        self.unreached: Sequence[int] = ()
        self.expected: Placement | None = None
        self.asked = 0.0
        self.alone = ""
        self.names = ObjectNames()
        self.apart: weakref.WeakSet[object] = weakref.WeakSet()


_participation = _Participation()


def is_elastic() -> bool:
    """Return whether this process belongs to an elastic job."""
    return Connection.from_env().member >= 0


def keeps_commits() -> bool:
    """Return whether ``fit`` has to commit its state: in an elastic job, and in a job with
    ``commit_dir``.
    """
    return is_elastic() or (session.takes_part() and bool(session.settings().commit_dir))


def object_names() -> ObjectNames:
    """Return the names for this process's unnamed objects."""
    return _participation.names


def prepare_commit() -> None:
    """Prepare the parts of this process's next commit that other processes keep.

    Raises HorovodInternalError if a parameter server is lost.
    """
    parameter_servers.commit_to_servers(_participation.commits + 1)


def agreed_commit() -> int:
    """Return the number of the commit from which the ranks of this membership have started; -1 in a
    job of a fixed size.
    """
    return _participation.agreed if is_elastic() else -1


def keep_each_rank(owner: object) -> None:
    """Let commits on disk have the values of each rank as long as ``owner`` exists: it trains
    weights, or has residuals, that may differ between ranks.
    """
    _participation.apart.add(owner)


def keeps_each_rank() -> bool:
    """Return whether commits on disk have the values of each rank; see ``keep_each_rank``."""
    return bool(_participation.apart)


def count_commit() -> None:
    """Record that this process has committed its state once more."""
    _participation.commits += 1


def commits() -> int:
    """Return the number of commits of this process's state."""
    return _participation.commits


def count_sync() -> None:
    """Record that this process has received the state of the training, or has sent it as rank 0.

    A process that is interrupted before that reports its own commits, perhaps none.
    """
    _participation.commits = max(_participation.agreed, 1)


def commit_number() -> int:
    """Return the number of the last commit of this process's state; 0 before the first."""
    return max(_participation.commits - 1, 0)  # the first synchronization counts, too


def has_state() -> bool:
    """Return whether any rank of an elastic job has the state of the training, after ``agree``."""
    return _participation.agreed > 0


def lost_commit() -> int:
    """Return the number of the last commit if it was lost with all ranks that had it, else 0."""
    return max(_participation.lost - 1, 0)


def adopt_commits(number: int) -> None:
    """Record on all ranks that rank 0 has loaded the commit ``number``, which the other ranks will
    receive.
    """
    _participation.agreed = number + 1


def is_member(placement: Placement, connection: Connection) -> bool:
    """Return whether this process is or was a member of its job: false for a process that was
    started while the job runs and has not joined yet.
    """
    if _participation.number:
        return True
    client = session.open_store(placement, connection)
    number = int(client.try_get(keys.NOW) or b"0")
    if not number:
        return True  # the first membership will be published soon
    return connection.member in _membership(client, number).processes


def _membership(client: StoreClient, number: int) -> Membership:
    from farandole.job.elastic.membership import Membership

    return Membership.from_bytes(client.get(keys.membership(number), _FOREVER))


def await_placement(client: StoreClient, connection: Connection, settings: Settings) -> Placement:
    """Wait for the next membership, set this process's environment variables for it, and return the
    placement.

    Raises SystemExit with code 0 if the process has been removed from the job.
    """
    # Imported here because most jobs have a fixed size.
    from farandole.job.elastic.membership import placements

    unreached, _participation.unreached = list(_participation.unreached), ()
    report = json.dumps([_participation.number, _participation.commits, unreached])
    client.set(keys.ready(connection.member), report.encode())
    membership = _next_membership(client, connection.member)
    _participation.number, _participation.lost = membership.number, membership.lost
    placement = placements(membership)[membership.processes.index(connection.member)]
    os.environ.update(placement.to_env(variables(Placement)))
    os.environ.update(torch_variables(placement, "127.0.0.1", membership.port))
    if not membership.port and not placement.rank:
        _offer_store(client, placement, settings)
    who = f"rank {placement.rank}"
    log.configure(settings.log_level, who=who, hide_time=settings.log_hide_time)
    return placement


def note_unreached(ranks: Sequence[int]) -> None:
    """Record the ranks of the current membership whose hosts this process cannot reach. The driver
    learns of them when this process waits for the next membership.
    """
    _participation.unreached = ranks


def _offer_store(client: StoreClient, placement: Placement, settings: Settings) -> None:
    """Publish the address of this process, rank 0 of a membership on several machines."""
    # Imported here because most jobs are on one machine.
    from farandole.net.interfaces import outside
    from farandole.net.store.ports import free_port

    address = outside(client.host, settings.network_interfaces)
    client.set(keys.first(placement.generation), json.dumps([address, free_port()]).encode())


def find_store(client: StoreClient, placement: Placement) -> None:
    """Set the variables of torch.distributed's store, which rank 0 creates, for a membership on
    several machines. Called once the ranks have connected: rank 0 has published its address before.
    """
    if os.environ["MASTER_PORT"] == "0":
        address, port = json.loads(client.get(keys.first(placement.generation), _FOREVER))
        os.environ.update(torch_variables(placement, address, port))


def _next_membership(client: StoreClient, process: int) -> Membership:
    """Wait for the next membership that includes ``process``, and return the membership.

    Raises SystemExit with code 0 if the process was a member before and is no longer.
    """
    seen = _participation.number
    while True:
        client.get(keys.membership(seen + 1), _FOREVER)
        seen = int(client.get(keys.NOW, _FOREVER))
        membership = _membership(client, seen)
        if process in membership.processes:
            return membership
        if _participation.number:
            logger.info("process %d has been removed from the elastic job", process)
            sys.exit(0)


def expect(placement: Placement) -> None:
    """Record the placement that the program sees until this process has joined the running job."""
    _participation.expected = placement


def join() -> bool:
    """Join the running job now, if this process has not yet done so.

    Returns whether its rank or the size has changed since ``init()``.
    """
    if not is_elastic():
        return False
    session.current()
    place, expected = session.placement(), _participation.expected
    _participation.expected = None
    return expected is not None and (expected.rank, expected.size) != (place.rank, place.size)


def notice() -> tuple[int, int] | None:
    """Return the change of hosts for which the ranks have to leave their membership at this commit:
    the number of the membership, and the kind of the change (``HostUpdateResult``).

    None if there is no change, or if the last query was less than ``NOTICE_SECONDS`` ago.
    """
    client, now = session.store(), time.monotonic()
    if client is None or not session.takes_part() or now < _participation.asked + NOTICE_SECONDS:
        return None
    _participation.asked = now
    number = session.placement().generation
    data = client.try_get(keys.notice(number))
    return None if data is None else (number, int(data))


def await_notice() -> bool:
    """Return whether the next commit will end the membership, because hosts have changed or a rank
    was lost.

    If the driver has started processes for added hosts, wait until they can join, or for
    ``NEWCOMERS`` seconds.
    """
    client = session.store()
    if client is None or not is_elastic():
        return False
    number, deadline = session.placement().generation, time.monotonic() + NEWCOMERS
    while all(client.try_get(key(number)) is None for key in (keys.broken, keys.notice)):
        if client.try_get(keys.newcomers(number)) is None or time.monotonic() > deadline:
            return False
        time.sleep(NOTICE_SECONDS)
    _participation.asked = 0.0  # the next commit queries, even if it follows immediately
    return True


def commit_alone() -> None:
    """Let ranks commit independently until this session ends, because a rank may be many steps
    behind. All ranks must call this after the same commit.
    """
    _participation.alone = session.session_id()


def commit_together() -> None:
    """Let ranks commit together in the session that begins."""
    _participation.alone = ""


def commits_alone() -> bool:
    """Return whether a commit of this rank is not a collective."""
    return _participation.alone != "" and _participation.alone == session.session_id()


def has_to_leave() -> bool:
    """Return whether the current membership has ended: it has lost a rank, or hosts have changed.

    False, without a query, if the last one was less than ``NOTICE_SECONDS`` ago.
    """
    client, now = session.store(), time.monotonic()
    if client is None or not is_elastic() or now < _participation.asked + NOTICE_SECONDS:
        return False
    _participation.asked = now
    number = session.placement().generation
    return any(client.try_get(key(number)) is not None for key in (keys.broken, keys.notice))


def agree(has_state: bool, failures: int = 0) -> bool:
    """Return whether all ranks have the state of the last commit, so that none has to receive it.

    ``has_state``: whether this rank has that state. ``failures``: see ``most_failures``. If it
    returns False, the ranks synchronize the state and call ``count_sync``; afterwards the number of
    commits is the same on all ranks. Collective; raises HorovodInternalError if it fails.
    """
    import numpy as np

    values: Any = np.array([not has_state, _participation.commits, failures], np.int64)
    reduce_to_most(_AGREEMENT, values)
    _participation.agreed, _participation.failures = int(values[1]), int(values[2])
    return not values[0]


def most_failures() -> int:
    """Return the greatest number of equal failures in a row of any rank's collectives, after
    ``agree``.
    """
    return _participation.failures


def agree_on_changes(
    is_new: bool, time: float, number: int, kinds: int, due: bool = False
) -> tuple[bool, float, int, int, bool]:
    """Return the changes of hosts that any rank has found: whether there are any, the time (in
    seconds) and the number of the newest, the kinds of all (``HostUpdateResult``), and whether
    any rank has a commit that is ``due`` to be written.

    All ranks have called this function when it returns on one of them. Collective.
    """
    import numpy as np

    flags = [bool(kinds & each) for each in (1, 2)]
    values: Any = np.array([is_new, time, number, *flags, due], np.float64)
    reduce_to_most(_CHANGES, values)
    kinds = int(values[3] + 2 * values[4])
    return bool(values[0]), float(values[1]), int(values[2]), kinds, bool(values[5])


def reduce_to_most(name: str, values: Any) -> None:
    """Replace each number in ``values``, an array of int64 or float64, by its maximum over all
    ranks. Collective.
    """
    dtype = DType.FLOAT64 if values.dtype.kind == "f" else DType.INT64
    request = Request(name, Kind.ALLREDUCE, dtype, values.shape, ReduceOp.MAX)
    session.current().engine.run([Entry(request, Buffer(values, values, dtype))])
