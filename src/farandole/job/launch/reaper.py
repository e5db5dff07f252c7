"""The reaper: starts a job's ranks on one host, reports their ends, and ends leftover processes.

There is one reaper per job and host. It is the ranks' parent and a child subreaper: a descendant
whose parent ends becomes the reaper's child, even in another session. Therefore no process started
by a rank can escape, and when the reaper has no children, no process of the job is running.

stdin: the length of a frame (8 bytes), then the frame (``marshal``: variables for all ranks, and
for each rank its command, its own variables, and the descriptors for its stdout and stderr), then
lines: ``term 0 2`` asks the ranks with these numbers to end (SIGTERM), and their descendants once
the ranks have ended, because a rank that saves its state needs its data loaders; ``kill 0 2`` kills
these ranks and all their descendants; ``send 10 0 2`` sends signal 10 to these ranks only.

stdout, in lines: ``started <pid> ...`` or ``failed <index> <errno>``; ``exit <index> <code>``;
``gone`` when no process is left, after which the reaper exits. If stdin closes earlier, or the
driver dies, the ranks are asked to end in the same way and, after the grace period, killed.

Arguments: the folder of this module, and the grace period in seconds.

The reaper's parent is a guard, another child subreaper. If the reaper is killed, its descendants
become children of the guard, which reports ``lost``, ends all of them and reports ``gone``.

This module imports only modules that load quickly and none of Farandole's, because it runs under
``python -I -S``.
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
    # ``signal`` adds enumerations, which take longer to load than everything else.
    import _signal as signal

TIDY = 2.0  # minimum seconds between SIGTERM and SIGKILL for leftover processes of the ranks
LOOK = 1.0  # seconds between checks that the driver is alive
AGAIN = 0.02  # seconds before SIGKILL is repeated for processes that started in between
# Seconds before a process that survives SIGKILL (blocked on a dead network disk) is abandoned.
GIVE_UP = 3.0
_PR_SET_CHILD_SUBREAPER = 36
# Python ignores these signals; ranks get the defaults, as from a shell.
_RESTORED = [signal.SIGPIPE, signal.SIGXFSZ]


def processes() -> dict[int, tuple[int, int]]:
    """Return (parent, start time) of every process except zombies, by pid."""
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
            # The name before it may contain spaces and brackets.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))


def below(root: int, known: dict[int, tuple[int, int]]) -> list[int]:
    """Return all descendants of ``root``, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def marked(mark: str) -> dict[int, tuple[int, int]]:
    """Return the processes with ``mark`` (NAME=value) in their environment, except this one.

    This finds a job's processes after their reaper was killed.
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
    """Signal the process ``seen`` earlier, unless its pid has been reused."""
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
        self.codes: dict[int, int] = {}  # exit codes by pid
        self.left = True  # a process has not ended
        self.asked_at: float | None = None  # time of the first request to end
        self._signalled: set[int] = set()  # pids of ranks that were asked to end
        self._killed: set[int] = set()
        # processes that got SIGTERM, by pid and start time
        self._asked: set[tuple[int, int]] = set()

    def start(
        self, base: dict[str, str], places: list[tuple[list[str], dict[str, str], int, int]]
    ) -> None:
        """Start the ranks. Raises OSError; ranks started before the error keep running."""
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
        """Return (index, code) of the ranks that have ended since the last call.

        ``left`` becomes False when there are no more processes.
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

    def terminate(self, indices: list[int]) -> None:
        """Send SIGTERM to these ranks, but not yet to their descendants; see ``tidy``.

        Each process gets SIGTERM only once: a second one would interrupt its clean-up.
        """
        chosen = {self.pids[index] for index in indices}
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        self._signalled |= chosen
        self._ask(list(chosen - set(self.codes)), processes())
        self.tidy()

    def tidy(self) -> None:
        """Send SIGTERM to the remaining processes once all ranks have ended on request."""
        if self.asked_at is not None and not set(self.pids) - set(self.codes):
            known = processes()
            self._ask(below(os.getpid(), known), known)

    def kill(self, indices: list[int]) -> None:
        """Kill these ranks and all their descendants; if all ranks are ending, also their
        orphans.
        """
        chosen = {self.pids[index] for index in indices}
        self._signalled |= chosen
        self._killed |= chosen
        self._kill(chosen, self._signalled)

    def pass_on(self, indices: list[int], number: int) -> None:
        """Send a signal that does not end them to the processes of these ranks only."""
        for pid in {self.pids[index] for index in indices} - set(self.codes):
            os.kill(pid, number)  # an unreaped child, so its pid cannot have been reused

    def kill_again(self) -> None:
        """Kill processes that have appeared in between."""
        self._kill(self._killed, self._killed)

    def _kill(self, chosen: set[int], ending: set[int]) -> None:
        known = processes()
        running = set(self.pids) - set(self.codes)
        if running <= ending:
            targets = below(os.getpid(), known)
        else:
            targets = [pid for rank in chosen & running for pid in (rank, *below(rank, known))]
        for pid in targets:
            if pid in known:
                send(pid, known[pid], signal.SIGKILL)

    def _ask(self, pids: list[int], known: dict[int, tuple[int, int]]) -> None:
        """Send SIGTERM to the processes that have not received it yet."""
        for pid in pids:
            if pid in known and (pid, known[pid][1]) not in self._asked:
                self._asked.add((pid, known[pid][1]))
                send(pid, known[pid], signal.SIGTERM)


def woken() -> int:
    """Return a descriptor that becomes readable when a signal arrives, such as a child's end."""
    wake, out = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(out, False)
    signal.set_wakeup_fd(out, warn_on_full_buffer=False)
    return wake


def say(line: str) -> None:
    """Report a line to the driver."""
    try:  # noqa: SIM105 (contextlib takes longer to load than all the rest)
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass  # a lost driver is detected elsewhere


class Driver:
    """The peer at the reaper's stdin and stdout."""

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
        """Return the driver's orders within this time or until a child ends; None if the driver
        has gone.
        """
        ready = select.select([0, self._wake], [], [], seconds)[0]
        if self._wake in ready:
            os.read(self._wake, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return None
            *lines, self._text = (self._text + data.decode()).split("\n")
            return lines
        # Another process may hold a copy of the pipe, so the pipe's end does not prove that the
        # driver has gone.
        return [] if os.getppid() == self._parent else None


def attend(driver: Driver, ranks: Ranks, grace: float) -> None:
    """Serve the driver until no process is left."""
    while True:
        for index, code in ranks.reap():
            say(f"exit {index} {code}")
        if not ranks.left:
            say("gone")
            return
        if ranks.killing:
            ranks.kill_again()
        else:
            ranks.tidy()
        orders = driver.orders(AGAIN if ranks.killing else LOOK)
        if orders is None:
            end_all(ranks, grace)
            return
        for order in orders:
            verb, *words = order.split()
            numbers = [int(word) for word in words]
            if verb == "send":
                ranks.pass_on(numbers[1:], numbers[0])
            elif verb == "kill":
                ranks.kill(numbers)
            else:
                ranks.terminate(numbers)


def end_all(ranks: Ranks, grace: float) -> None:
    """End all descendants without a driver: SIGTERM and, after the grace period, SIGKILL."""
    everyone, began = list(range(len(ranks.pids))), time.monotonic()
    ranks.terminate(everyone)
    # The driver may have asked the ranks before it was lost.
    deadline = max(began + TIDY, (ranks.asked_at or began) + grace)
    while ranks.left and time.monotonic() < deadline + GIVE_UP:
        ranks.reap()
        if time.monotonic() > deadline:
            ranks.kill(everyone)
        else:
            ranks.tidy()
        time.sleep(AGAIN)


def guard(child: int, grace: float) -> None:
    """Guard the reaper ``child``, and end its leftover processes if it is killed.

    When the driver has gone, the end of this process notifies the reaper.
    """
    os.close(0)  # also the ranks' pipes, so that the driver sees them close
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
        end_all(Ranks(), grace)
        say("gone")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    import _ctypes  # ``ctypes`` takes half as long to load as Python itself

    # None searches the loaded libraries.
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
        # A handler, unlike SIG_IGN, is not inherited by the ranks. Ranks ignore the signals that
        # the driver ignores (nohup).
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    try:
        child = os.fork()
    except OSError as error:  # a limit on the number of processes
        say(f"failed 0 {error.errno}")
        sys.exit(1)
    adopt_orphans()
    grace = float(sys.argv[2])
    if child:
        guard(child, grace)
        return
    driver, ranks = Driver(), Ranks()
    base, places = marshal.loads(driver.read(int.from_bytes(driver.read(8), "little")))
    try:
        ranks.start(base, places)
    except OSError as error:
        say(f"failed {len(ranks.pids)} {error.errno}")
        ranks.kill(list(range(len(ranks.pids))))
    else:
        say(f"started {' '.join(map(str, ranks.pids))}")
    attend(driver, ranks, grace)
