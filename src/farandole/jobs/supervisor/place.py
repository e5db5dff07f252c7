"""The supervisor's files on a local file system: lock, socket, log and index."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
from collections.abc import Iterator

from farandole.job.runs.folder import make_private
from farandole.job.runs.home import RunsHome

# The magic numbers of network file systems in statfs(2). Locks and SQLite's shared memory are not
# reliable on these.
_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x00C36400: "Ceph",
    0x65735546: "FUSE",
    0x01021997: "9p",
    0x5346414F: "AFS",
}


def state_folder(home: RunsHome) -> str:
    """Return the folder for a home's local state; create it readable by this user only.

    The folder is below ``$XDG_STATE_HOME`` (default ``~/.local/state``), or below the temporary
    folder if that path is on a network file system.
    """
    key = hashlib.blake2b(home.path.encode(), digest_size=8).hexdigest()
    state = os.path.expanduser(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    folder = os.path.join(state, "farandole", key)
    try:
        make_private(folder)
        remote = network_file_system(folder)
    except OSError:
        remote = "unwritable"
    if remote:
        folder = make_private(os.path.join(tempfile.gettempdir(), f"farandole-{os.getuid()}", key))
        check_owner(folder)
    return folder


def check_owner(folder: str) -> None:
    """Raise PermissionError if another user could write to ``folder``."""
    for path in (os.path.dirname(folder), folder):
        status = os.stat(path, follow_symlinks=False)
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(
                f"{path} belongs to another user or is writable by others; remove it, or set TMPDIR"
                " to your own folder"
            )


def network_file_system(path: str) -> str:
    """Return the name of the network file system that holds ``path``; empty for a local one."""
    return _NETWORK.get(_magic(path), "")


def _magic(path: str) -> int:
    """Return ``f_type``, the first word of statfs(2)'s result; 0 if the call fails."""
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    if library.statfs(os.fsencode(path), buffer):
        return 0
    word = ctypes.c_long.from_buffer(buffer).value
    return word & 0xFFFFFFFF


@contextlib.contextmanager
def socket_address(home: RunsHome) -> Iterator[str]:
    """Yield a path of the supervisor's socket that is short enough for any path of the home."""
    folder = os.open(state_folder(home), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/supervisor.sock"
    finally:
        os.close(folder)


def lock_path(home: RunsHome) -> str:
    return os.path.join(state_folder(home), "supervisor.lock")


def log_path(home: RunsHome) -> str:
    return os.path.join(state_folder(home), "supervisor.log")
