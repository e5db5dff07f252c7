"""Starts a job's ranks on one host, sees them end, and ends their leftovers: one process per job
and host.

The reaper is the ranks' parent and a child subreaper: a process below it whose own parent ends
becomes its child, in whatever session it is. So nothing that a rank starts can get away, and when
the reaper has no child left, nothing of the job runs.

stdin: the length of a frame (8 bytes), the frame (``marshal``: variables for all, and for each rank
its command, its own variables, and the descriptors for its stdout and stderr), then lines: ``term 0
2`` and ``kill 0 2`` signal the ranks of these numbers with all below them, ``send 10 0 2`` sends
these ranks alone the signal 10. stdout, in lines: ``started <pid> ...`` or ``failed <index>
<errno>``; ``exit <index> <code>``; ``gone`` when nothing is left, and then the reaper ends. If
stdin closes before that, or the driver dies, all get SIGTERM and, after a grace, SIGKILL.

Its parent is a guard, another child subreaper: if the reaper is killed, what was below it comes to
the guard, which says ``lost``, ends all of it and says ``gone``.

Only modules that Python loads quickly: it is imported by a ``python -I -S`` and knows no other
module of ours.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    # what signal adds, enumerations, takes longer to load than all the rest
    import _signal as signal

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LOOK = 1.0  # seconds between looks whether the driver is there
AGAIN = 0.02  # seconds after which SIGKILL goes to processes that were started meanwhile
# seconds after which a process that does not die of SIGKILL (a dead network disk) is left alone
GIVE_UP = 3.0
_PR_SET_CHILD_SUBREAPER = 36
# Python ignores them; a rank is to find them as in a shell
_RESTORED = [signal.SIGPIPE, signal.SIGXFSZ]


def processes() -> dict[int, tuple[int, int]]:
    """(parent, start time) of every process that is no zombie, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            seen = _look(int(name))
            if seen is not None:
                found[int(name)] = seen
    return found


def _look(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name before it may hold spaces and brackets
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))


def below(root: int, known: dict[int, tuple[int, int]]) -> list[int]:
    """All descendants of ``root``, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def marked(mark: str) -> dict[int, tuple[int, int]]:
    """Processes with ``mark`` (NAME=value) in their environment, other than this one: how a job's
    processes are found when their reaper was killed.
    """
    wanted, found = mark.encode(), {}
    for pid, seen in processes().items():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if pid != os.getpid() and wanted in file.read().split(b"\0"):
                    found[pid] = seen
        except OSError:
            continue
    return found


def send(pid: int, seen: tuple[int, int], number: int) -> None:
    """Signal the process that was seen, and no other that has got its number since."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3
        handle = -1
    try:
        now = _look(pid)
        if now is None or now[1] != seen[1]:
            return
        if handle < 0:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        if handle >= 0:
            os.close(handle)


class Ranks:
    """The children of this process."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.codes: dict[int, int] = {}  # by pid
        self.left = True  # something has not ended
        self._signalled: set[int] = set()  # pids of ranks that were told to end
        self._killed: set[int] = set()
        self._asked: set[tuple[int, int]] = set()  # who has got SIGTERM, by pid and start time

    def start(
        self, base: dict[str, str], places: list[tuple[list[str], dict[str, str], int, int]]
    ) -> None:
        """Raises OSError; the ranks started by then run."""
        for _, _, out, err in places:
            os.set_inheritable(out, False)
            os.set_inheritable(err, False)
        for command, own, out, err in places:
            files = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ]
            env = {**base, **own}
            pid = os.posix_spawnp(
                command[0], command, env, file_actions=files, setsid=True, setsigdef=_RESTORED
            )
            self.pids.append(pid)
        for _, _, out, err in places:
            os.close(out)
            os.close(err)

    def reap(self) -> list[tuple[int, int]]:
        """(index, code) of the ranks that have ended since; ``left`` is False when no process is
        left.
        """
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.left = False
                return ended
            if not pid:
                return ended
            if pid in self.pids and pid not in self.codes:
                self.codes[pid] = os.waitstatus_to_exitcode(status)
                ended.append((self.pids.index(pid), self.codes[pid]))

    @property
    def killing(self) -> bool:
        return bool(self._killed)

    def signal(self, indices: list[int], number: int) -> None:
        """To these ranks and all below them; also to orphans of ranks, if no rank is to go on.
        SIGTERM comes once to each: a second one would interrupt what the first has begun.
        """
        chosen = {self.pids[index] for index in indices}
        self._signalled |= chosen
        if number == signal.SIGKILL:
            self._killed |= chosen
        self._send(chosen, self._signalled, number)

    def pass_on(self, indices: list[int], number: int) -> None:
        """A signal that is not to end them, to the processes of these ranks alone."""
        for pid in {self.pids[index] for index in indices} - set(self.codes):
            os.kill(pid, number)  # it is our child, and not reaped: the number is its own

    def kill_again(self) -> None:
        """Kill the processes that appeared meanwhile."""
        self._send(self._killed, self._killed, signal.SIGKILL)

    def _send(self, chosen: set[int], ending: set[int], number: int) -> None:
        known = processes()
        running = set(self.pids) - set(self.codes)
        if running <= ending:
            targets = below(os.getpid(), known)
        else:
            targets = [pid for rank in chosen & running for pid in (rank, *below(rank, known))]
        for pid in targets:
            if pid not in known or (
                number == signal.SIGTERM and (pid, known[pid][1]) in self._asked
            ):
                continue
            if number == signal.SIGTERM:
                self._asked.add((pid, known[pid][1]))
            send(pid, known[pid], number)


def woken() -> int:
    """A descriptor that can be read when a signal has come, such as that of a child's end."""
    wake, out = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(out, False)
    signal.set_wakeup_fd(out, warn_on_full_buffer=False)
    return wake


def say(line: str) -> None:
    """To the driver."""
    try:  # noqa: SIM105 (contextlib takes longer to load than all the rest)
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass  # it has gone; that is seen elsewhere


class Driver:
    """The other end of our stdin and stdout."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._text = ""
        self._wake = woken()

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(0, size - len(data))
            if not piece:
                sys.exit(1)
            data += piece
        return data

    def orders(self, seconds: float) -> list[str] | None:
        """The driver's orders within this time, or until a child ends; None when it has gone."""
        ready = select.select([0, self._wake], [], [], seconds)[0]
        if self._wake in ready:
            os.read(self._wake, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return None
            *lines, self._text = (self._text + data.decode()).split("\n")
            return lines
        # Another process may hold a copy of the pipe, so its end is not enough to see that the
        # driver has gone.
        return [] if os.getppid() == self._parent else None


def attend(driver: Driver, ranks: Ranks) -> None:
    """Until nothing is left."""
    while True:
        for index, code in ranks.reap():
            say(f"exit {index} {code}")
        if not ranks.left:
            say("gone")
            return
        if ranks.killing:
            ranks.kill_again()
        orders = driver.orders(AGAIN if ranks.killing else LOOK)
        if orders is None:
            end_all(ranks)
            return
        for order in orders:
            verb, *words = order.split()
            numbers = [int(word) for word in words]
            if verb == "send":
                ranks.pass_on(numbers[1:], numbers[0])
            else:
                ranks.signal(numbers, signal.SIGKILL if verb == "kill" else signal.SIGTERM)


def end_all(ranks: Ranks) -> None:
    """Nobody is left who could ask for it: all below this process get SIGTERM and, after a grace,
    SIGKILL.
    """
    everyone, began = list(range(len(ranks.pids))), time.monotonic()
    ranks.signal(everyone, signal.SIGTERM)
    while ranks.left and time.monotonic() < began + GRACE + GIVE_UP:
        ranks.reap()
        if time.monotonic() > began + GRACE:
            ranks.signal(everyone, signal.SIGKILL)
        time.sleep(AGAIN)


def guard(child: int) -> None:
    """As long as ``child``, the reaper, runs; what is left after one that was killed is ended. When
    the driver has gone, the end of this process tells the reaper.
    """
    os.close(0)  # and the ranks' pipes, whose ends the driver is to see
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    wake, parent = woken(), os.getppid()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if os.getppid() != parent:
            return
        if select.select([wake], [], [], LOOK)[0]:
            os.read(wake, 4096)
    if os.WIFSIGNALED(status):
        say("lost")
        end_all(Ranks())
        say("gone")


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    import _ctypes  # the package around it takes half as long to load as Python itself

    # None: what is loaded
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_LAZY), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)):
        sys.exit(1)


def main() -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
    ):
        # A handler, unlike SIG_IGN, is not passed on to the ranks. What the driver ignores (nohup),
        # they ignore.
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    try:
        child = os.fork()
    except OSError as error:  # a limit on processes
        say(f"failed 0 {error.errno}")
        sys.exit(1)
    adopt_orphans()
    if child:
        guard(child)
        return
    driver, ranks = Driver(), Ranks()
    base, places = marshal.loads(driver.read(int.from_bytes(driver.read(8), "little")))
    try:
        ranks.start(base, places)
    except OSError as error:
        say(f"failed {len(ranks.pids)} {error.errno}")
        ranks.signal(list(range(len(ranks.pids))), signal.SIGKILL)
    else:
        say(f"started {' '.join(map(str, ranks.pids))}")
    attend(driver, ranks)
