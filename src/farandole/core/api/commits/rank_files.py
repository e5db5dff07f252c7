"""The values of each rank in commits on disk, if they differ between ranks: local weights, states
of optimizers, residuals, and values of ``register_per_rank``.

Each rank other than 0 writes its own file, when rank 0 writes the commit. A job with the same
number of ranks continues from these files; with another number, all ranks continue from rank 0's
values.
"""

from __future__ import annotations

from typing import Any

import cloudpickle

from farandole.base.log import logger
from farandole.base.pickled import dumps
from farandole.core.api.commits.commit_file import Commit
from farandole.core.api.commits.store import CommitFolder
from farandole.core.api.commits.writer import CommitWriter
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.job import context

_OWN, _FAILURES = "elastic.own", "elastic.own_failures"


class RegisteredValues:
    """The values of ``register_per_rank`` of a state, if only these differ between ranks."""

    def to_bytes(self, saved: Any) -> bytes:
        return dumps(saved)


class RankFiles:
    """The files of this job's ranks in the folder at ``path``. ``job``: the id of the job."""

    def __init__(self, path: str, job: str) -> None:
        self._path, self._job = path, job
        self._writers: dict[int, CommitWriter] = {}  # by the rank in a membership
        self._content: bytes | None = None  # from the loaded commit, for ``use``
        self._is_whole = True  # whether that is a whole state

    def offer(self, state: Any, number: int) -> None:
        """Record the commit ``number`` just saved by ``state``, on a rank other than 0."""
        rank = context.rank()
        if rank not in self._writers:
            folder = CommitFolder(self._path, _kind_of(rank))
            self._writers[rank] = CommitWriter(folder, 0.0, self._job)
        if context.keeps_each_rank():
            self._writers[rank].offer(state, number, state.saved_values())
        else:
            self._writers[rank].offer(RegisteredValues(), number, state.saved_own_values())

    def start(self) -> None:
        """Start to write the last commit of this rank."""
        writer = self._writers.get(context.rank())
        if writer is not None:
            writer.start()

    def write_now(self) -> None:
        """Write the last commit of this rank."""
        writer = self._writers.get(context.rank())
        if writer is not None:
            writer.write_now()

    def finish(self) -> None:
        """Write the last commit of this rank, and report a failure."""
        writer = self._writers.get(context.rank())
        if writer is not None:
            writer.finish()

    def is_complete(self, commit: Commit) -> bool:
        """Return whether all ranks of this job can load their values of ``commit``."""
        size = context.size()
        if commit.ranks in (0, 1) or commit.ranks != size:
            return True
        return all(
            CommitFolder(self._path, _kind_of(rank)).has(commit.job, commit.number)
            for rank in range(1, size)
        )

    def load(self, commit: Commit | None) -> None:
        """Adopt rank 0's id of the job, and read this rank's values of the loaded ``commit``, which
        only rank 0 knows. None: there is no commit. Collective.
        """
        size, found = context.size(), None
        self._content = None
        if commit is not None and commit.ranks > 1:
            if commit.ranks == size:
                found = commit.job, commit.number
            else:
                _warn_of_other_size(commit, size)
        self._job, found = broadcast_object((self._job, found), name=_OWN)
        if found is None:
            return
        failure = ""
        if commit is not None:
            self._content, self._is_whole = commit.content, True
        else:
            failure = self._read(*found)
        failures = allgather_object(failure, name=_FAILURES)
        if any(failures):
            self._content = None
            rank = next(rank for rank, each in enumerate(failures) if each)
            if context.rank() == 0:
                logger.warning(
                    "commit %d: rank %d cannot load its own values: %s. All %d ranks continue from"
                    " rank 0's values",
                    found[1],
                    rank,
                    failures[rank],
                    size,
                )

    def use(self, state: Any) -> None:
        """Set the values that ``load`` has read, after ``state`` has received rank 0's."""
        content, self._content = self._content, None
        if content is None:
            return
        if self._is_whole:
            state.from_bytes(content)
        else:
            state.use_own_values(cloudpickle.loads(content))

    def _read(self, job: str, number: int) -> str:
        """Read this rank's file. Return the reason of a failure."""
        try:
            found = CommitFolder(self._path, _kind_of(context.rank())).of(job, number)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if found is None:
            return f"{self._path} has no file {_kind_of(context.rank())} of this commit"
        self._content, self._is_whole = found.content, found.state != RegisteredValues.__name__
        return ""


def _kind_of(rank: int) -> str:
    return f"rank{rank}"


def _warn_of_other_size(commit: Commit, size: int) -> None:
    logger.warning(
        "commit %d has the values of %d ranks, which differ (local weights, states of optimizers,"
        " residuals), and this job has %d: all ranks continue from rank 0's values. To continue"
        " exactly, start %d ranks",
        commit.number,
        commit.ranks,
        size,
        commit.ranks,
    )
