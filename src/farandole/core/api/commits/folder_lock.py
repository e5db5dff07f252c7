"""The lock on a local folder of commits, so that two jobs on one host do not use the same
folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from farandole.core.api.commits.store import FULL
from farandole.errors import DataError
from farandole.job.runs.identity import ProcessIdentity

_NAME = ".owner"
_WAIT = 10.0  # seconds for the processes of a killed job to end


class FolderLock:
    """The lock on the folder ``path`` for the job with the id ``job``.

    The lock belongs to this process, and ends with it. A lock of a process on a different host is
    ignored: a file server may keep the lock of a lost host for minutes.
    """

    def __init__(self, path: str, job: str) -> None:
        self._path, self._job = path, job
        self._file: int | None = None

    def acquire(self, seconds: float = _WAIT) -> None:
        """Lock the folder. Succeeds without a lock on a file system without locks, and if another
        process of this job has the lock.

        Raises DataError if another job has the lock for ``seconds``, and OSError if the folder
        cannot be used.
        """
        end = time.monotonic() + seconds
        while (owner := self._try()) is not None:
            if time.monotonic() >= end:
                raise DataError(
                    f"another job writes commits to the folder: process {owner.pid} on"
                    f" {owner.host}. Use a separate folder for each job, or end the other job"
                )
            time.sleep(0.1)

    def acquire_if_free(self) -> None:
        """Lock the folder if possible."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._try()

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.release()

    def _try(self) -> ProcessIdentity | None:
        """Lock the folder, or return the process of another job on this host that has the lock."""
        os.makedirs(self._path, exist_ok=True)
        file = os.open(
            os.path.join(self._path, _NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._owner(file)
            os.close(file)
            return owner
        except OSError:  # no locks on this file system
            os.close(file)
            return None
        self._file = file
        me = json.dumps({"job": self._job, **ProcessIdentity.of().to_json()}).encode()
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, me, 0)
        except OSError as error:
            if error.errno not in FULL:
                raise
        return None

    def _owner(self, file: int) -> ProcessIdentity | None:
        try:
            facts = json.loads(os.pread(file, 1 << 12, 0))
            owner = ProcessIdentity.from_json(facts)
        except (ValueError, KeyError, TypeError):  # the file is being written
            return None
        return owner if owner.here and facts["job"] != self._job else None
