"""The keeper of an elastic program's commits: it writes them to a folder, and loads the last commit
if no rank has the state.
"""

from __future__ import annotations

import os
import time
import weakref
from _blake2 import blake2b
from typing import Any

from farandole.base.durations import readable
from farandole.base.log import logger
from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.folder_lock import FolderLock
from farandole.core.api.commits.own_values import OwnValues
from farandole.core.api.commits.store import RESTART, CommitFolder
from farandole.core.api.commits.writer import CommitWriter
from farandole.core.api.objects import broadcast_object
from farandole.errors import CommitDirError, DataError
from farandole.job import context
from farandole.job.config import Settings
from farandole.job.report import messages

_LOAD = "elastic.load"
_MAX_CHARACTERS = 300  # maximum characters of an error's message


class Keeper:
    """Keeps the commits of the state of one call of ``elastic.run``, according to ``settings``.

    ``has_own_values``: whether the state has values that differ between ranks.
    """

    def __init__(self, settings: Settings, has_own_values: bool = False) -> None:
        self._folder = CommitFolder(settings.commit_dir) if settings.commit_dir else None
        self._begun = False
        self._own = OwnValues(settings.commit_copies) if has_own_values else None
        self._writer: CommitWriter | None = None
        self._lock: FolderLock | None = None
        if self._folder is not None:
            job = _job()
            self._writer = CommitWriter(
                self._folder, settings.commit_dir_seconds, job, context.shares()
            )
            if self._folder.local:
                self._lock = FolderLock(self._folder.local, job)

    def keep(self, state: Any) -> None:
        """Keep the values just saved by ``state``. Does not wait for the disk or the network,
        except for copies of the previous commit.
        """
        if self._writer is not None and context.rank() == 0:
            self._writer.offer(state, context.commit_number(), state.saved_values())
        if self._own is not None:
            self._own.keep(state, context.commit_number())

    def hand_over(self, state: Any) -> None:
        """Hand over the own values of lost ranks to the present ranks. Collective."""
        if self._own is not None:
            self._own.hand_over(state)

    def load(self, state: Any) -> None:
        """Load the newest commit in the folder on rank 0 if no rank has the state of the training.

        Collective. Raises CommitDirError on all ranks if the commit does not fit the state, if the
        folder cannot be used or another job on this host uses it, or if the state of the training
        is lost and the folder has no commit.
        """
        has_state = context.has_state() if context.is_elastic() else self._begun
        self._begun = True
        if has_state and self._lock is not None and context.rank() == 0:
            self._lock.acquire_if_free()  # the previous rank 0 may be lost, and its lock with it
        if self._folder is None or has_state:
            return
        number, failure = 0, ""
        if context.rank() == 0:
            number, failure = self._try_to_read(self._folder, state)
        number, failure = broadcast_object((number, failure), name=_LOAD)
        lost = context.lost_commit()
        if not number and not failure and lost:
            failure = f"the folder has no commit, and only lost ranks had commit {lost}. {RESTART}"
        if failure:
            raise CommitDirError(f"--commit-dir {self._folder.path}: {failure}")
        if number or not context.is_elastic():
            context.adopt_commits(number)

    def flush(self) -> None:
        """Complete the copies of the last commit before a planned change of ranks. Collective."""
        if self._own is not None:
            self._own.flush()

    def finish(self) -> None:
        """Write the last commit, at the end of the program's function."""
        if self._own is not None:
            self._own.close()
        if self._writer is not None and context.rank() == 0:
            self._writer.finish()
        if self._lock is not None:
            self._lock.release()

    def write_now(self) -> bool:
        """Write the last commit; see the function ``write_now``."""
        return self._writer is not None and context.rank() == 0 and self._writer.write_now()

    def _try_to_read(self, folder: CommitFolder, state: Any) -> tuple[int, str]:
        """Load the newest commit into ``state``. Return the commit's number, or 0 for none, and the
        reason of a failure.
        """
        try:
            if self._lock is not None:
                self._lock.acquire()
            commit = folder.newest(logger.warning)
            folder.check_writable()
        except DataError as error:
            return 0, str(error)
        except Exception as error:
            return 0, f"{_in_one_line(error)}. Check the folder, and the rights to write there"
        if commit is None:
            return 0, ""
        try:
            _check_fit(commit, state)
            state.from_bytes(commit.content)
        except Exception as error:
            return 0, f"commit {commit.number} does not fit: {_in_one_line(error)}. {RESTART}"
        age = readable(max(0.0, time.time() - commit.time))
        lost = context.lost_commit()
        messages.log(
            f"The training continues from commit {commit.number} in {folder.path}, which is"
            f" {age} old." + (f" Commit {lost} was lost." if lost > commit.number else "")
        )
        return commit.number, ""


def _check_fit(commit: Commit, state: Any) -> None:
    """Raise ValueError unless ``commit`` has the class of ``state`` and this job's global batch."""
    name, shares = type(state).__name__, context.shares()
    if commit.state != name:
        raise ValueError(f"it was made by a {commit.state}, but the state is a {name}")
    if commit.shares and shares and commit.shares != shares:
        raise ValueError(
            f"its global batch has {commit.shares} shares, and this job's has {shares}. With"
            f" --max-np {commit.shares} the batch stays the same"
        )


def _in_one_line(error: Exception) -> str:
    """Return the class and the shortened message of ``error``: PyTorch's may name all weights."""
    text = " ".join(str(error).split()).rstrip(".")
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}..."
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _job() -> str:
    """Return the id of this process's job, the same on all ranks."""
    connection = context.connection()
    name = f"{connection.store} {connection.secret}" if connection.store else str(os.getpid())
    return blake2b(name.encode(), digest_size=8).hexdigest()


_keeper: weakref.ReferenceType[Keeper] | None = None


def keeper_of(settings: Settings, has_own_values: bool) -> Keeper:
    """Return a new ``Keeper`` for the state of ``elastic.run``; ``write_now`` uses it from now
    on.
    """
    global _keeper
    made = Keeper(settings, has_own_values)
    _keeper = weakref.ref(made)
    return made


def write_now() -> bool:
    """Write the last commit to the folder of ``--commit-dir`` now, for example before the host is
    shut down. Return whether it is written.

    Call it on any thread of any rank; only rank 0 writes. Returns False without a folder, without a
    commit, and after a failed write, which is logged.
    """
    keeper = None if _keeper is None else _keeper()
    return keeper is not None and keeper.write_now()


context.rescues.append(write_now)
