"""Process sets: subsets of the ranks that run collectives among themselves."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from farandole.base.log import logger
from farandole.core.engine import Engine, Participant
from farandole.errors import RequestError, ranks_named
from farandole.job.context import communicator, session
from farandole.job.context.membership import is_elastic, object_names

if TYPE_CHECKING:
    from farandole.core.groups.messages import Messages


class ProcessSet:
    """A subset of the ranks. Register it with ``add_process_set`` or ``init(process_sets=[...])``
    before use.

    ``ranks_or_comm``: ranks as a list, or an mpi4py communicator. ``process_set_id``: the set's id
    while it is registered, else None. ``ranks``: sorted global ranks; None until ``init()`` for a
    communicator. Ranks may pass different communicators, such as the results of ``Split``.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = ranks_or_comm if hasattr(ranks_or_comm, "Get_group") else None
        if self.mpi_comm is not None:
            self.ranks = (
                communicator.members(self.mpi_comm, session.rank())
                if session.takes_part()
                else None
            )
            return
        try:
            self.ranks = sorted(operator.index(number) for number in ranks_or_comm)
        except TypeError:
            raise ValueError(
                "ProcessSet should be constructed either with a list of process ranks or with an"
                f" mpi4py communicator (got {ranks_or_comm!r})"
            ) from None

    def _registered(self) -> tuple[int, ...]:
        ranks = (
            None
            if self.process_set_id is None
            else session.current().sets.ranks(self.process_set_id)
        )
        if ranks is None:
            session.current()
            raise ValueError("Process set does not exist or has not been registered.")
        return ranks

    def size(self) -> int:
        """Return the number of ranks in the set."""
        return len(self._registered())

    def rank(self) -> int:
        """Return this process's rank within the set. Raises ValueError outside the set."""
        ranks = self._registered()
        if session.rank() not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(session.rank())

    def included(self) -> bool:
        """Return whether this process is in the set."""
        ranks = self._registered()  # first, because a process that joins gets its final rank
        return session.rank() in ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks},"
            f" mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


_registered: set[ProcessSet] = set()  # in this session
# The sets to register again when the ranks of an elastic job have changed, in order.
_kept: list[ProcessSet] = []
# Optimizers outlive the engine of their process set and continue with its next engine.
_participants: WeakKeyDictionary[ProcessSet, WeakSet[Participant]] = WeakKeyDictionary()
global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None


def register_again() -> None:
    """Register the sets that the program has registered, in the same order, after the ranks of an
    elastic job have changed.

    Sets that the function of ``elastic.run`` itself has registered are left out, because it is
    called again on all ranks, also on new ones.
    """
    for process_set in kept():
        register(process_set)


def kept() -> list[ProcessSet]:
    """Return the sets that ``register_again`` registers."""
    return list(_kept)


def keep(process_sets: Sequence[ProcessSet]) -> None:
    """Make ``process_sets`` the sets that ``register_again`` registers."""
    _kept[:] = process_sets


def _needs_no_engine(process_set: ProcessSet) -> bool:
    """Return whether a set has no separate engine in the current membership of an elastic job: it
    is the set of all ranks, or lacks a rank, which is reported.

    The set is registered in the next membership that has all its ranks, and others.
    """
    size, ranks = session.size(), process_set.ranks or []
    if not is_elastic() or session.placement().generation <= 1 or process_set.mpi_comm is not None:
        return False
    if ranks == list(range(size)):
        process_set.process_set_id = 0
        _registered.add(process_set)
        return True
    if max(ranks, default=0) < size:
        return False
    logger.warning(
        "the process set of %s cannot be used at present: the job has %d ranks. It is registered"
        " again once the job has these ranks",
        ranks_named(ranks),
        size,
    )
    return True


def register(process_set: ProcessSet) -> None:
    """Register ``process_set`` on all ranks, even if sets are not dynamic."""
    sets = session.current().sets
    if process_set not in _kept and not object_names().is_within:
        _kept.append(process_set)
    if _needs_no_engine(process_set):
        return
    if process_set.mpi_comm is not None:  # each rank may have its own communicator
        process_set.ranks = communicator.members(process_set.mpi_comm, session.rank())
        process_set.process_set_id = sets.add_each(process_set.ranks)
    else:
        process_set.process_set_id = sets.add(process_set.ranks or [])
    _registered.add(process_set)
    engine = sets.engine(process_set.process_set_id)
    if engine is not None:
        hand_over_participants(process_set, engine)


def hand_over_participants(process_set: ProcessSet, engine: Engine) -> None:
    """Make the optimizers of a process set participants of its new engine."""
    engine.participants = _participants.setdefault(process_set, engine.participants)


def forget_all() -> None:
    """Clear the ids of all registered sets, because their session has ended."""
    _kept.clear()
    while _registered:
        _registered.pop().process_set_id = None


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register ``process_set``, or a list of ranks, and return the set.

    All ranks must call this with the same sets in the same order; the call returns when all have.
    Raises ValueError for a set that is already registered, or without
    HOROVOD_DYNAMIC_PROCESS_SETS=1.
    """
    _check_dynamic()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    register(added)
    return added


def process_set_among(ranks: Sequence[int]) -> ProcessSet:
    """Return the registered set of ``ranks``; register it first if needed, even if sets are not
    dynamic.

    All ranks must call this in the same order.
    """
    wanted = sorted(ranks)
    if wanted == process_sets()[0]:
        return global_process_set
    # return the same object, whose id is cleared when the set is removed
    for registered in _registered:
        if registered.ranks == wanted:
            return registered
    process_set = ProcessSet(wanted)
    register(process_set)
    return process_set


def messages_among(ranks: Sequence[int]) -> Messages | None:
    """Return the message channel among ``ranks``, which is independent of collectives; None on a
    rank outside.

    Returns the same channel each time unless it has failed. All ranks must call this in the same
    order.
    """
    return session.current().sets.messages(ranks)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove ``process_set`` on all ranks.

    Returns False if it is not registered or is the set of all ranks.
    """
    _check_dynamic()
    number, sets = process_set.process_set_id, session.current().sets
    remove = sets.remove if process_set.mpi_comm is None else sets.remove_each
    if number is None or not remove(number):
        return False
    process_set.process_set_id = None
    _registered.discard(process_set)
    if process_set in _kept:
        _kept.remove(process_set)
    return True


def process_sets() -> dict[int, list[int]]:
    """Return the ranks of the registered sets by id."""
    return session.current().sets.all()


def unique_id(process_set: ProcessSet) -> int:
    """Return an id for the registered set that is unique within this session."""
    return session.current().sets.unique_id(process_set.process_set_id or 0)


def engines() -> list[Engine]:
    """Return the engines of all process sets that include this rank; none before ``init()``."""
    return [] if session._current is None else session._current.sets.engines()


def engine(process_set: ProcessSet = global_process_set) -> Engine:
    """Return the engine of a process set, by default of all ranks.

    Raises NotInitializedError before ``init()``, and RequestError if the set is not registered or
    does not include this rank.
    """
    here = session._current or session.current()
    if process_set is global_process_set:
        return here.engine
    number = process_set.process_set_id
    if number is None or here.sets.ranks(number) is None:
        raise RequestError("Process set provided does not exist, or has not been registered.")
    found = here.sets.engine(number)
    if found is None:
        raise RequestError(
            f"Rank {here.placement.rank} is not a member of the provided process set."
        )
    return found


def stays_alone(process_set: ProcessSet = global_process_set) -> bool:
    """Return whether this rank has no other rank of ``process_set`` to exchange with, now or later.

    A rank of an elastic job may get other ranks later.
    """
    session.current()  # a process that joins a running job gets its final place
    if session.size() > 1 and process_set.included() and process_set.size() > 1:
        return False
    return process_set is not global_process_set or not is_elastic()


def _check_dynamic() -> None:
    if not session.current().settings.dynamic_process_sets:
        raise ValueError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding/removing process sets after Horovod"
            " initialization."
        )
