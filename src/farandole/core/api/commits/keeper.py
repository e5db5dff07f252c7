"""The keeper of an elastic program's commits: it writes them to a folder, and loads the last commit
if no rank has the state.
"""

from __future__ import annotations

import os
import time
import weakref
from _blake2 import blake2b
from typing import Any

import cloudpickle

from farandole.base.durations import readable
from farandole.base.log import logger
from farandole.base.pickled import dumps
from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.folder_lock import FolderLock
from farandole.core.api.commits.own_values import OwnValues
from farandole.core.api.commits.rank_files import RankFiles
from farandole.core.api.commits.store import RESTART, CommitFolder
from farandole.core.api.commits.writer import CommitWriter
from farandole.core.api.objects import broadcast_object
from farandole.core.api.state import ObjectState
from farandole.errors import CommitDirError, DataError, HorovodInternalError
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
        self._of_ranks: RankFiles | None = None
        if self._folder is not None:
            job = _job()
            self._of_ranks = RankFiles(settings.commit_dir, job)
            self._writer = CommitWriter(
                self._folder,
                settings.commit_dir_seconds,
                job,
                context.shares(),
                _packed_server_states,
            )
            if self._folder.local:
                self._lock = FolderLock(self._folder.local, job)

    def keep(self, state: Any) -> None:
        """Keep the values just saved by ``state``. Does not wait for the disk or the network,
        except for copies of the previous commit.
        """
        number = context.commit_number()
        if self._writer is not None and self._of_ranks is not None:
            apart = _differs(state)
            if context.rank() == 0:
                ranks = context.size() if apart else 0
                self._writer.offer(state, number, state.saved_values(), ranks)
            elif apart:
                self._of_ranks.offer(state, number)
        if self._own is not None:
            self._own.keep(state, number)

    def is_due(self) -> bool:
        """Return whether this is rank 0, and it is time to write a commit."""
        return self._writer is not None and context.rank() == 0 and self._writer.is_due()

    def write(self) -> None:
        """Start to write the last commit, which all ranks have made."""
        if self._writer is None or self._of_ranks is None:
            return
        if context.rank() == 0:
            self._writer.start()
        else:
            self._of_ranks.start()

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
        if self._folder is None or self._of_ranks is None or has_state:
            return
        commit, number, failure = None, 0, ""
        if context.rank() == 0:
            commit, failure = self._try_to_read(self._folder, self._of_ranks, state)
            number = 0 if commit is None else commit.number
        number, failure = broadcast_object((number, failure), name=_LOAD)
        lost = context.lost_commit()
        if not number and not failure and lost:
            failure = f"the folder has no commit, and only lost ranks had commit {lost}. {RESTART}"
        if failure:
            raise CommitDirError(f"--commit-dir {self._folder.path}: {failure}")
        if number or not context.is_elastic():
            context.adopt_commits(number)
        self._of_ranks.load(commit)

    def use_own_values(self, state: Any) -> None:
        """Set this rank's own values of the loaded commit, after ``state`` has received rank
        0's.
        """
        if self._of_ranks is not None:
            self._of_ranks.use(state)

    def flush(self) -> None:
        """Complete the copies of the last commit before a planned change of ranks. Collective."""
        if self._own is not None:
            self._own.flush()

    def finish(self) -> None:
        """Write the last commit, at the end of the program's function."""
        if self._own is not None:
            self._own.close()
        if self._writer is not None and self._of_ranks is not None:
            if context.rank() == 0:
                self._writer.finish()
            else:
                self._of_ranks.finish()
        if self._lock is not None:
            self._lock.release()

    def write_now(self) -> bool:
        """Write the last commit; see the function ``write_now``."""
        if self._writer is None or self._of_ranks is None:
            return False
        if context.rank() == 0:
            return self._writer.write_now()
        self._of_ranks.write_now()
        return False

    def _try_to_read(
        self, folder: CommitFolder, of_ranks: RankFiles, state: Any
    ) -> tuple[Commit | None, str]:
        """Load the newest commit into ``state``. Return the commit, or None, and the reason of a
        failure.
        """
        try:
            if self._lock is not None:
                self._lock.acquire()
            commit = folder.newest(logger.warning, of_ranks.is_complete)
            folder.check_writable()
        except DataError as error:
            return None, str(error)
        except Exception as error:
            return None, f"{_in_one_line(error)}. Check the folder, and the rights to write there"
        if commit is None:
            return None, ""
        try:
            _check_fit(commit, state)
            state.from_bytes(commit.content)
            context.load_server_states(commit.number, _server_states(commit))
        except Exception as error:
            return None, f"commit {commit.number} does not fit: {_in_one_line(error)}. {RESTART}"
        age = readable(max(0.0, time.time() - commit.time))
        lost = context.lost_commit()
        messages.log(
            f"The training continues from commit {commit.number} in {folder.path}, which is"
            f" {age} old." + (f" Commit {lost} was lost." if lost > commit.number else "")
        )
        return commit, ""


def _differs(state: Any) -> bool:
    """Return whether the values of ``state`` may differ between ranks that commit together."""
    if context.commits_alone() or context.size() == 1:
        return False
    own = isinstance(state, ObjectState) and state.merges_of_own_values()
    return context.keeps_each_rank() or bool(own)


def _packed_server_states(number: int) -> bytes:
    """Return the states of parameter servers at commit ``number``, packed; empty if a server does
    not send them.
    """
    try:
        # the first synchronization counts as a commit on the servers
        return dumps(context.server_states(number + 1))
    except (DataError, HorovodInternalError, OSError) as error:
        logger.warning(
            "commit %d will be written without the states of the optimizers on the parameter"
            " servers: %s. A job that continues from it begins them again with zeros",
            number,
            _in_one_line(error),
        )
        return b""


def _server_states(commit: Commit) -> Any:
    return cloudpickle.loads(commit.servers) if commit.servers else None


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

    Call it on any thread of all ranks. Rank 0 writes the commit; other ranks write only their own
    values, if these differ, and return False. Returns False without a folder, without a commit, and
    after a failed write, which is logged.
    """
    keeper = None if _keeper is None else _keeper()
    return keeper is not None and keeper.write_now()


context.rescues.append(write_now)
