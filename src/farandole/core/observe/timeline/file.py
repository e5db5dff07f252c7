"""A JSON array that grows on disk and is complete after every write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence

from farandole.errors import SettingsError

_CLOSE = b"\n]\n"


def claim(fd: int, keep: int = 0) -> bool:
    """Lock a file and truncate it to ``keep`` bytes. Return False if another job is writing to it.

    The lock belongs to this process alone, not to forked children, and ends with it. On a file
    system without locks the file is used unlocked.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
    with contextlib.suppress(OSError):  # a device (/dev/null) has no length
        os.ftruncate(fd, keep)
    return True


class ArrayFile:
    """A JSON array file. Each write replaces the closing bracket and appends a new one, so readers
    always find a complete array. A process killed during a write may leave the last line truncated,
    which ``merge.read`` and trace viewers accept.
    """

    def __init__(self, path: str, keep: int = 0) -> None:
        """Open the file. ``keep``: bytes of complete elements to keep. Raises SettingsError if the
        file cannot be written, or another job writes it.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SettingsError(
                f"the timeline cannot be written to {path!r}: {error.strerror}; name a file in an"
                " existing, writable directory (--timeline-filename, HOROVOD_TIMELINE)"
            ) from error
        if not claim(self._fd, keep):
            os.close(self._fd)
            raise SettingsError(
                f"the timeline file {path!r} is in use by another job; use a separate file for each"
                " job (--timeline-filename, HOROVOD_TIMELINE)"
            )
        self._end = keep  # position of the closing bracket
        self._separator = b",\n" if keep else b"[\n"
        # a full disk is reported when the first element is appended
        with contextlib.suppress(OSError):
            self._write(_CLOSE) if keep else self.append([])

    def append(self, elements: Sequence[str]) -> None:
        """Append elements, each a JSON text. If the disk is full, restore the file and raise
        OSError.
        """
        text = self._separator + ",\n".join(elements).encode() if elements or not self._end else b""
        if not text:
            return
        try:
            self._write(text + _CLOSE)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
                os.pwrite(self._fd, _CLOSE if self._end else b"[]", self._end)
            raise
        self._end += len(text)
        if elements:
            self._separator = b",\n"
        else:
            # an empty array: continue after its opening bracket
            self._end = 1
            self._separator = b"\n"

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self._end + done)
