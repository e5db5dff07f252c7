"""Starting the supervisor, or waking a running one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import socket
import subprocess
import sys

from farandole.job.runs.home import HOME_VARIABLE, RunsHome
from farandole.jobs.supervisor.place import lock_path, log_path, socket_address


def wake(home: RunsHome) -> bool:
    """Wake the supervisor and return True; return False if none listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            with socket_address(home) as address:
                sender.sendto(b"wake", address)
        except BlockingIOError:  # the supervisor has not yet read earlier messages
            return True
        except OSError:
            return False
    return True


def ensure_running(home: RunsHome) -> None:
    """Wake the supervisor, or start one that outlives this process and its terminal.

    Returns immediately. If several processes start a supervisor, all but one exit.
    """
    if not (is_running(home) and wake(home)):
        start(home)


def is_running(home: RunsHome) -> bool:
    """Return whether a supervisor of this home is running."""
    return running_pid(home) is not None


def running_pid(home: RunsHome) -> int | None:
    """Return the process id of the supervisor; None if no process holds its lock.

    The id is 0 for a moment while a supervisor starts.
    """
    try:
        descriptor = os.open(lock_path(home), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(descriptor, 32, 0) or b"0")
    finally:
        os.close(descriptor)
    return None


def start(home: RunsHome) -> None:
    """Start a supervisor in its own session.

    If the user has a systemd manager and lingering is enabled, the supervisor becomes a unit of
    this manager, so that it survives the end of the login session.
    """
    home.folder("runs")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(log_path(home), flags, 0o600)
    try:
        process = subprocess.Popen(
            [*_systemd_prefix(), sys.executable, *_SAFE, "-m", "farandole.jobs.supervisor.daemon"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, HOME_VARIABLE: home.path},
            start_new_session=True,
        )
    finally:
        os.close(log)
    reap()
    _started.append(process)


def reap() -> None:
    """Reap ended supervisors started by this process."""
    _started[:] = [process for process in _started if process.poll() is None]


_started: list[subprocess.Popen[bytes]] = []  # usually outlive this process


# Try a scope first: if the manager refuses it, start the supervisor without. In both cases exec
# replaces the shell, so the supervisor keeps its session.
_SCOPE = "systemd-run --user --scope --quiet --collect"
_IN_SCOPE = f'{_SCOPE} true </dev/null && exec {_SCOPE} "$@"; exec "$@"'
_SAFE = ["-P"] if sys.version_info >= (3, 11) else []  # import no modules of the user's folder


def _systemd_prefix() -> list[str]:
    """Return a prefix that runs a command under the user's systemd; empty if that is impossible."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    lingers = False
    with contextlib.suppress(OSError, KeyError):
        lingers = os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(os.getuid()).pw_name}")
    manager = os.path.exists(os.path.join(runtime, "systemd", "private"))
    if not (lingers and manager and shutil.which("systemd-run")):
        return []
    return ["sh", "-c", _IN_SCOPE, "sh"]
