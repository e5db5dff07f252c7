"""A client of PMI-1, the process management interface of MPICH, Intel MPI and ``srun --mpi=pmi2``.

The process manager gives each process a socket (``PMI_FD``), which carries lines of ``name=value``
words. After a barrier, every process can get the values put by the others.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import socket
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence

from farandole.errors import HorovodInternalError, RendezvousError, WireError
from farandole.job.bootstrap.contract import PMI
from farandole.job.bootstrap.siblings import LOOK, NO_SIBLINGS, Siblings
from farandole.job.config import Placement

_KEY = "farandole"
_LONGEST = 1 << 16  # maximum bytes of an answer
_DRAIN = 2.0  # seconds
# Seconds for the daemons to forward output to mpirun or srun, which stop reading once ranks are
# killed.
_FORWARD = 1.0


def broadcast(
    placement: Placement,
    text: Callable[[], str],
    timeout: float,
    siblings: Siblings = NO_SIBLINGS,
    arrive: Callable[[], None] | None = None,
) -> str:
    """Send rank 0's ``text()`` (without blanks) to every rank. Collective; once per process.

    ``arrive`` is called before the wait for all ranks. A RendezvousError that it raises aborts the
    job, which Slurm accepts only from processes that have begun a session.
    """
    manager = Manager(int(os.environ[PMI]), timeout, siblings)
    try:
        manager.init()
        if arrive is not None:
            arrive()
        parts: list[str] = []
        if placement.rank == 0:
            whole, most = text(), manager.longest_value - 1
            parts = [whole[start : start + most] for start in range(0, len(whole), most)]
            manager.put(_KEY, str(len(parts)))
            for number, part in enumerate(parts):
                manager.put(f"{_KEY}-{number}", part)
        manager.barrier()
        if not parts:
            parts = [manager.get(f"{_KEY}-{number}") for number in range(int(manager.get(_KEY)))]
        manager.finalize()
        return "".join(parts)
    except TimeoutError:
        abort_at_exit()
        raise RendezvousError(
            f"rank {placement.rank}: not all {placement.size} ranks reached init() within"
            f" {timeout:g} s. Every rank must call init(); if starting takes longer, raise"
            " --start-timeout (FARANDOLE_START_TIMEOUT)."
        ) from None
    except RendezvousError:
        abort_at_exit()
        raise
    except OSError as error:
        raise HorovodInternalError(
            f"mpirun's process manager closed the connection (PMI_FD): {error}. It serves one"
            " program per rank: if a script runs several, only one may call init()"
        ) from error
    finally:
        manager.close()


def abort_at_exit() -> None:
    """Abort through the process manager at exit, once this rank's message is out.

    The process manager then ends all ranks, including ranks without an error.
    """
    if PMI in os.environ:
        with contextlib.suppress(OSError, ValueError):
            atexit.register(_abort, Manager(int(os.environ[PMI]), LOOK))


def _abort(manager: Manager) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    wait_until_read((1, 2), _DRAIN)
    time.sleep(_FORWARD)
    manager.abort()


def wait_until_read(fds: Sequence[int], timeout: float) -> None:
    """Wait until the output in these pipes has been read, at most ``timeout`` seconds.

    Hydra handles an abort before output and drops unread output, such as the traceback with the
    cause.
    """
    deadline = time.monotonic() + timeout
    while any(map(_unread, fds)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _unread(fd: int) -> int:
    """Return the number of bytes in a pipe; 0 for anything else."""
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        return int(count)
    except OSError:
        return 0


class Manager:
    """The process manager, as seen by one process. Error answers raise WireError."""

    def __init__(self, fd: int, timeout: float, siblings: Siblings = NO_SIBLINGS) -> None:
        self.longest_value = 0
        self._space = ""
        self._text = b""
        # The descriptor itself stays open for an MPI library.
        self._sock = socket.socket(fileno=os.dup(fd))
        self._sock.settimeout(min(LOOK, timeout))
        self._timeout = timeout
        self._siblings = siblings

    def init(self) -> None:
        self._ask("init", "response_to_init", pmi_version="1", pmi_subversion="1")
        self.longest_value = int(self._ask("get_maxes", "maxes")["vallen_max"])
        self._space = self._ask("get_my_kvsname", "my_kvsname")["kvsname"]

    def put(self, key: str, value: str) -> None:
        self._ask("put", "put_result", kvsname=self._space, key=key, value=value)

    def get(self, key: str) -> str:
        return self._ask("get", "get_result", kvsname=self._space, key=key)["value"]

    def barrier(self) -> None:
        self._ask("barrier_in", "barrier_out")

    def finalize(self) -> None:
        """End the session; otherwise the end of this process would count as a failure."""
        self._ask("finalize", "finalize_ack")

    def abort(self) -> None:
        """End all processes of the job."""
        with contextlib.suppress(OSError):
            self._sock.sendall(b"cmd=abort exitcode=1\n")

    def close(self) -> None:
        self._sock.close()

    def _ask(self, command: str, wanted: str, **words: str) -> dict[str, str]:
        line = " ".join(f"{name}={value}" for name, value in {"cmd": command, **words}.items())
        self._sock.sendall(line.encode() + b"\n")
        answer = self._line()
        found = dict(word.partition("=")[::2] for word in answer.split())
        if found.get("cmd") != wanted or found.get("rc", "0") != "0":
            raise WireError(f"mpirun's process manager answers {command!r} with {answer!r} (PMI-1)")
        return found

    def _line(self) -> str:
        deadline = time.monotonic() + self._timeout
        while b"\n" not in self._text:
            try:
                data = self._sock.recv(4096)
            except TimeoutError:
                if ended := self._siblings.ended():
                    raise RendezvousError.ended(ended) from None
                if time.monotonic() > deadline:
                    raise
                continue
            if not data or len(self._text) > _LONGEST:
                raise ConnectionError(
                    "it closed the connection" if not data else "its answer is incomplete"
                )
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return line.decode(errors="replace")
