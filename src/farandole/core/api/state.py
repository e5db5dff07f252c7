"""The state of an elastic job: values that are saved, restored after a failure, and synchronized
between ranks.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from farandole.base.digests import whole_digest
from farandole.base.log import logger
from farandole.core.api.objects import broadcast_object
from farandole.errors import HostsUpdatedInterrupt
from farandole.job import context
from farandole.job.elastic.changes import HostUpdateResult
from farandole.job.plugins import registry

_CANNOT = "--commit-dir and --check-replicas-every need a State that defines"


class HostMessages:
    """The changes of hosts that the next commit of a state will report: ``state._host_messages``,
    which programs for Horovod poll.

    ``messages``: the changes that the program itself has reported.
    """

    def __init__(self, messages: queue.SimpleQueue[tuple[float, int]]) -> None:
        self._messages = messages

    def empty(self) -> bool:
        """Return whether the next commit will report no change.

        If processes for added hosts are starting, wait until they can join: the program expects
        its next commit to report the change.
        """
        return self._messages.empty() and not context.await_notice()


class State:
    """The common part of all states: commits, and notifications of added and removed hosts.

    ``bcast_object``: a function that returns rank 0's object on all ranks. ``get_rank``: a function
    that returns this process's rank.
    """

    # Set by ``elastic.run`` if commits are also kept outside of this rank (``core.api.commits``).
    _keeper: Any = None
    _commits = False  # whether a commit is in progress
    _is_due = False  # whether rank 0 writes the last commit to a folder

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = context.rank,
    ) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._messages: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._last_update = 0.0  # the time of the last change reported by the program
        self._last_notice = 0  # the number of the membership in the driver's last notice
        self._reset_callbacks: list[Callable[[], object]] = []
        self._checks: list[Any] | None = None  # see ``_commit_checks``

    @property
    def _host_messages(self) -> HostMessages:
        return HostMessages(self._messages)

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Register functions to call without arguments when the ranks have changed, for example to
        adapt the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to changed ranks: drop notifications, and call ``reset`` and the callbacks."""
        while not self._messages.empty():
            self._messages.get()
        self.reset()
        for check in self._checks or ():
            check.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Record that hosts were added or removed; ``check_host_updates`` notifies all ranks.

        ``timestamp``: the time of the change, in seconds; a change that is not newer than the last
        one has no effect. ``update_res``: its kind, a ``HostUpdateResult``. Thread-safe.
        """
        self._messages.put((timestamp, int(update_res)))

    def commit(self) -> None:
        """Save the values in memory, and check whether hosts were added or removed. Within a step,
        after some of this rank's shares of a fixed global batch, it has no effect.

        In an elastic job, all ranks have saved this commit when ``commit`` returns on one of them:
        it survives as long as one of them does.

        Collective. Raises HostsUpdatedInterrupt if hosts were added or removed, and
        HorovodInternalError if a rank is lost meanwhile.
        """
        if not context.is_between_steps():
            return
        context.announce_commit()
        checks = [] if context.commits_alone() else self._commit_checks()
        for check in checks:
            check.before_save()
        context.prepare_commit()
        self.save()
        for check in checks:
            check.after_save()
        context.count_commit()
        if self._keeper is not None:
            self._keeper.keep(self)
        self._commits = True
        try:
            self.check_host_updates()
        finally:
            self._commits = False
        if self._is_due and self._keeper is not None:
            self._keeper.write()

    def begin_checks(self) -> None:
        """Begin the checks requested by the settings: one measures the steps before the first
        commit.
        """
        self._commit_checks()

    def _commit_checks(self) -> list[Any]:
        """Return the checks requested by the settings for all commits."""
        if self._checks is None and context.is_initialized():
            settings = context.settings()
            wanted = {
                "replicas": settings.check_replicas_every,
                "stragglers": settings.leave_out_stragglers,
            }
            self._checks = [
                registry.load("commit_check", name)(self, value)
                for name, value in wanted.items()
                if value
            ]
        return self._checks or []

    def replicas(self) -> Mapping[str, Any]:
        """Return the values that are replicated on all ranks, by name: weights and optimizer
        states. Empty while they may differ, for example between two averages of local SGD.
        """
        return {}

    def digest_of_replica(self, value: Any) -> int:
        """Return a digest of all bytes of one of ``replicas()``."""
        return whole_digest(np.asarray(value))

    def bytes_of_replica(self, value: Any) -> Any:
        """Return the bytes of one of ``replicas()``, as a 1-D array of uint8."""
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def overwrite_replicas(self, values: Mapping[str, Any]) -> None:
        """Overwrite some of ``replicas()`` with other bytes, by name."""
        for name, value in values.items():
            array = self.replicas()[name]
            array[...] = value.view(array.dtype).reshape(array.shape)

    def saved_values(self) -> Any:
        """Return the values of the last ``save``. Later saves do not change them."""
        raise NotImplementedError(f"{_CANNOT} saved_values() (a {type(self).__name__})")

    def use_saved_values(self, saved: Any) -> None:
        """Set the values that ``restore`` restores. Raises ValueError if they do not fit this
        state.
        """
        raise NotImplementedError(f"{_CANNOT} use_saved_values() (a {type(self).__name__})")

    def to_bytes(self, saved: Any) -> bytes:
        """Pack the values returned by ``saved_values``. Called on another thread."""
        from farandole.base.pickled import dumps  # imported here: most jobs pack no state

        return dumps(saved)

    def from_bytes(self, data: bytes) -> None:
        """Use and restore the values packed by ``to_bytes``, perhaps in another process.

        Raises ValueError if they do not fit this state.
        """
        self.use_saved_values(self._unpacked(data))
        self.restore()

    def _unpacked(self, data: bytes) -> Any:
        import cloudpickle  # imported here: most jobs load no state

        return cloudpickle.loads(data)

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if a rank was notified of a change of hosts; in
        a job of a fixed size, if rank 0 was.

        With a strategy that does not wait for all ranks (``quorum``), each rank raises it
        independently, also after a loss. Otherwise collective; raises HorovodInternalError if a
        rank is lost meanwhile.
        """
        if not context.is_between_steps():
            return
        if context.takes_part() and not self._commits:  # all ranks take part in a commit
            context.announce_check()
        due = self._commits and self._keeper is not None and self._keeper.is_due()
        if context.commits_alone():
            self._is_due = due
            if context.has_to_leave() or not self._messages.empty():
                raise HostsUpdatedInterrupt(skip_sync=False)
            return
        last, number, changes = self._last_update, self._last_notice, 0
        # A notice has a number and no time, because the driver's clock may be set back.
        notice = context.notice() if context.is_elastic() and self._rank() == 0 else None
        if notice is not None and notice[0] > number:
            number, changes = notice
        while not self._messages.empty():
            timestamp, change = self._messages.get()
            if timestamp > last:
                last, changes = timestamp, changes | change
        is_new = (last, number) != (self._last_update, self._last_notice)
        found = is_new, last, number, int(changes), due
        # One reduction costs a third of an object's exchanges, and completes the commit: no rank
        # continues before all ranks have saved it.
        is_new, last, number, changes, self._is_due = (
            context.agree_on_changes(*found) if context.is_elastic() else self._bcast_object(found)
        )
        self._last_update, self._last_notice = last, number
        if is_new:
            raise HostsUpdatedInterrupt(skip_sync=changes == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep a copy of all values in memory."""
        raise NotImplementedError("a State must define save()")

    def restore(self) -> None:
        """Restore the values of the last ``save``."""
        raise NotImplementedError("a State must define restore()")

    def sync(self) -> None:
        """Adopt all values from rank 0, and save them. Collective.

        Raises HorovodInternalError if a rank is lost meanwhile. Receive all values before saving
        any, so that ``restore`` does not mix two commits.
        """
        raise NotImplementedError("a State must define sync()")

    def reset(self) -> None:
        """Adapt the values to changed ranks. Subclasses may override this method."""


def check_names(mine: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Raise ValueError unless the values in ``loaded`` have the names of ``mine``."""
    if loaded.keys() != mine.keys():
        there, here = (", ".join(sorted(each)) or "none" for each in (loaded, mine))
        raise ValueError(f"the commit has the values {there}, and the state has {here}")


def check_fit(mine: Sequence[Any], loaded: Sequence[Any]) -> None:
    """Raise ValueError unless the arrays in ``loaded`` match the number and shapes of ``mine``."""
    shapes = [[tuple(each.shape) for each in arrays] for arrays in (loaded, mine)]
    if shapes[0] == shapes[1]:
        return
    if len(mine) != len(loaded):
        raise ValueError(f"the commit has {len(loaded)} variables, and the state has {len(mine)}")
    index = next(i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)
    there, here = shapes[0][index], shapes[1][index]
    raise ValueError(f"variable {index} is {there} in the commit, and {here} in the state")


def check_array(name: str, mine: Any, loaded: Any) -> None:
    """Check the shape of an array that was loaded from a commit.

    A history, such as the losses of all epochs, is longer in a commit than at the start of a
    program. An array that is longer along one axis is therefore accepted, with a warning unless
    ``mine`` is empty. Raises ValueError for any other difference, because the program would
    continue with the weights of another model.
    """
    if not (isinstance(mine, np.ndarray) and isinstance(loaded, np.ndarray)):
        return
    if mine.shape == loaded.shape or not mine.size:
        return
    there, here = loaded.shape, mine.shape
    changed = [(a, b) for a, b in zip(there, here, strict=False) if a != b]
    if len(there) != len(here) or len(changed) > 1 or changed[0][0] < changed[0][1]:
        raise ValueError(f"{name} is {there} in the commit, and {here} in the state")
    logger.warning(
        "the state continues with %s of shape %s from the commit, instead of %s", name, there, here
    )


class ObjectState(State):
    """Plain values, as attributes: ``ObjectState(epoch=0, batch=0).epoch``. Saved as deep copies.

    ``bcast_object``, ``get_rank``: see ``State``. ``kwargs``: the values, which must be picklable.

    An attribute is the program's own object until ``restore()``, or ``sync()`` on a rank other than
    0, replaces it with a copy.

    ``lost_ranks``: the lost ranks whose own values were not taken over before the start of the
    function of ``elastic.run``, each with ``process``, ``rank``, ``commit`` and ``values`` (by
    name); see ``register_per_rank``.
    """

    _merges: Mapping[str, Callable[[Any, Any], Any] | None] = {}
    lost_ranks: Sequence[Any] = ()

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = context.rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved = dict(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved = self._values()

    def register_per_rank(self, name: str, merge: Callable[[Any, Any], Any] | None = None) -> None:
        """Let each rank keep its own value of ``name``, which ``sync`` does not replace by rank
        0's.

        In an elastic job, each commit is copied to other ranks (``--commit-copies``), on other
        hosts if possible, while the next step runs. After a loss, ``lost_ranks`` has the values of
        the lost ranks on all ranks when the program's function restarts. A new rank starts with its
        initial value, and takes over the value of one lost rank, if there is one.

        Arguments:
            name: A plain value of this state, which must be picklable.
            merge: ``merge(own, lost)`` returns the value of a rank that takes over the value of a
                lost rank in addition to its own. Each lost value is taken over once. None: only
                new ranks take over values.

        Call it on all ranks before the function of ``elastic.run``. Raises ValueError if the state
        has no such value.
        """
        if name not in self._saved:
            raise ValueError(
                f"register_per_rank({name!r}): the state has the values"
                f" {', '.join(sorted(self._saved)) or 'none'}. Pass {name}=... to the state"
            )
        self._merges = {**self._merges, name: merge}

    def merges_of_own_values(self) -> Mapping[str, Callable[[Any, Any], Any] | None]:
        """Return the names that were passed to ``register_per_rank``, with their merge
        functions.
        """
        return self._merges

    def saved_own_values(self) -> dict[str, Any]:
        """Return this rank's own values in the last ``save``."""
        return {name: self._saved[name] for name in self._merges}

    def use_own_values(self, values: Mapping[str, Any]) -> None:
        """Set and save this rank's own values, by name."""
        for name in self._merges.keys() & values.keys():
            self._saved[name] = values[name]
            setattr(self, name, copy.deepcopy(values[name]))

    def save(self) -> None:
        self._saved = self._values()

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        self._adopt(self._receive())

    def replicas(self) -> Mapping[str, Any]:
        """Return the arrays of real numbers among the values, except each rank's own values
        (``register_per_rank``).
        """
        found = {name: getattr(self, name) for name in self._saved if name not in self._merges}
        return {
            name: value
            for name, value in found.items()
            if isinstance(value, np.ndarray) and value.dtype.kind in "fc" and value.size
        }

    def saved_values(self) -> Any:
        return self._saved

    def use_saved_values(self, saved: Any) -> None:
        check_names(self._saved, saved)
        self._saved = saved

    def from_bytes(self, data: bytes) -> None:
        before = self._saved
        self.use_saved_values(self._unpacked(data))
        for name in before.keys() - self._merges.keys():
            check_array(name, before[name], self._saved[name])
        self.restore()

    def _receive(self) -> dict[str, Any]:
        """Return rank 0's values without changing this rank's values. Collective."""
        values = self._values()
        received: dict[str, Any] = self._bcast_object(values) if values else {}
        # On rank 0 the program may hold its own references to these objects.
        own = {name: values[name] for name in self._merges}
        return values if self._rank() == 0 else {**received, **own}

    def _adopt(self, received: dict[str, Any]) -> None:
        """Save the values returned by ``_receive``, and use them from now on."""
        self._saved = received
        if self._rank() != 0:
            ObjectState.restore(self)

    def _values(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self._saved}
