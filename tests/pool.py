"""Many ranks in a test.

``ranks(n, fn)``: n threads over ``inproc``; ``fn(transport)`` on each.
``procs(n, fn)``: n processes over ``shm`` or ``tcp``; ``fn(transport)`` on each.
``spread(n, fn)``: n processes and no wire; ``fn(rank)`` on each.

All return the results in rank order, raise what a rank raised (the cause rather than its victims),
and fail after ``deadline`` seconds instead of hanging. Processes come from a pool of warm ones, so
that a test costs milliseconds; one that died is replaced. ``spread`` and ``procs`` with
``deaths=True`` give a ``Died`` where a process was killed.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle

from farandole.base.pickled import dumps
from farandole.core.collectives import over
from farandole.core.transports.inproc import World
from farandole.errors import HorovodInternalError, PeerLostError
from farandole.net.handshake import new_secret

HERE = Path(__file__).parent
# seconds until all ranks are there: one whose process is new imports its framework first
START = 150.0


class Deadline(AssertionError):
    """Ranks were still busy at the deadline; the message shows where."""


class Remote(Exception):
    """The traceback of another process, as the cause of an exception in this one."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Died:
    """The result of a process that died: its exit code (negative: the signal)."""

    code: int


def ranks(
    n: int, fn: Callable[[Any], Any], *, deadline: float = 90.0, ahead: int = 1 << 20
) -> list[Any]:
    """Run ``fn(transport)`` on n threads, the ranks of one inproc world."""
    world = World(n, ahead)
    return threads(n, lambda rank: over(world.link(rank)), fn, deadline=deadline)


def threads(
    n: int,
    join: Callable[[int], Any],
    fn: Callable[[Any], Any],
    *,
    deadline: float = 90.0,
    close: bool = True,
) -> list[Any]:
    """Run ``fn(join(rank))`` on n threads. A rank that fails aborts its wire, so that the others
    end too.
    """
    results: list[Any] = [None] * n
    errors: list[BaseException | None] = [None] * n
    wires: list[Any] = [None] * n

    def body(rank: int) -> None:
        try:
            wires[rank] = join(rank)
            results[rank] = fn(wires[rank])
        except BaseException as error:
            errors[rank] = error
            if wires[rank] is not None:
                wires[rank].abort(f"rank {rank} failed: {error!r}")

    workers = [
        threading.Thread(target=body, args=(rank,), daemon=True, name=f"rank {rank}")
        for rank in range(n)
    ]
    end = time.monotonic() + deadline
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    stuck = [rank for rank, worker in enumerate(workers) if worker.is_alive()]
    if stuck:
        places = "\n".join(_stack(workers[rank]) for rank in stuck)
        for wire in filter(None, wires):
            wire.abort("the test took too long")
        for worker in workers:
            worker.join(2.0)
    if close:
        for wire in filter(None, wires):
            wire.close()
    if stuck and not any(errors[rank] for rank in range(n) if rank not in stuck):
        raise Deadline(f"ranks {stuck} of {n} were still busy after {deadline} s\n{places}")
    _raise_cause(errors)
    return results


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}:\n" + (
        "".join(traceback.format_stack(frame)) if frame else "  (just ended)"
    )


def _raise_cause(errors: Sequence[BaseException | None]) -> None:
    """Raise the error of the rank that failed first: one that is not the consequence of another's."""
    raised = [error for error in errors if error is not None]
    for kind in (PeerLostError, HorovodInternalError):
        causes = [error for error in raised if not isinstance(error, kind)]
        raised = causes or raised
    if raised:
        raise raised[0]


class _Process:
    """One warm process."""

    def __init__(self) -> None:
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        # as farandole run does on two cores: ranks that each take all are slow
        threads = {"OMP_NUM_THREADS": "1"}
        environment = {
            **threads,
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker_main.py"), str(task_read), str(result_write)],
            pass_fds=(task_read, result_write),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        os.close(task_read)
        os.close(result_write)
        self.tasks = Connection(task_write, readable=False)
        self.results = Connection(result_read, writable=False)

    def ready(self) -> bool:
        try:
            return self.results.poll(150) and self.results.recv_bytes() == b"ready"
        except EOFError:
            return False

    def end(self) -> int:
        self.process.kill()
        code = self.process.wait()
        self.tasks.close()
        self.results.close()
        return code


_idle: list[_Process] = []
_lock = threading.Lock()


def _borrow(n: int) -> list[_Process]:
    with _lock:
        mine = [_idle.pop() for _ in range(min(n, len(_idle)))]
    mine = [each for each in mine if each.process.poll() is None or each.end() is None]
    fresh = [_Process() for _ in range(n - len(mine))]
    for each in fresh:
        if not each.ready():
            raise RuntimeError(f"a test process did not start: exit code {each.end()}")
    return mine + fresh


@atexit.register
def end_all() -> None:
    """End every idle process. Busy ones end when their pipe closes."""
    with _lock:
        while _idle:
            _idle.pop().end()


def spread(
    n: int, fn: Callable[[int], Any], *, deadline: float = 300.0, deaths: bool = False
) -> list[Any]:
    """Run ``fn(rank)`` in n processes."""
    module = sys.modules.get(getattr(fn, "__module__", ""), None)
    if (
        module is not None
        and getattr(module, "__file__", None)
        and HERE in Path(str(module.__file__)).parents
    ):
        # test modules need not be importable over there
        cloudpickle.register_pickle_by_value(module)
    workers = _borrow(n)
    results: list[Any] = [None] * n
    errors: list[BaseException | None] = [None] * n
    waiting = dict(enumerate(workers))
    try:
        for rank, worker in waiting.items():
            worker.tasks.send_bytes(dumps((fn, (rank,))))
        end = time.monotonic() + deadline
        while waiting:
            ready = wait(
                [worker.results for worker in waiting.values()], max(0.0, end - time.monotonic())
            )
            if not ready:
                _show(waiting)
                raise Deadline(
                    f"ranks {sorted(waiting)} of {n} were still busy after {deadline} s (stacks on"
                    " stderr)"
                )
            for rank in [rank for rank, worker in waiting.items() if worker.results in ready]:
                _receive(waiting.pop(rank), rank, results, errors, deaths)
    finally:
        for worker in waiting.values():
            worker.end()
        with _lock:
            _idle.extend(worker for worker in workers if worker.process.returncode is None)
    _raise_cause(errors)
    return results


def _receive(
    worker: _Process,
    rank: int,
    results: list[Any],
    errors: list[BaseException | None],
    deaths: bool,
) -> None:
    try:
        fine, value, text = cloudpickle.loads(worker.results.recv_bytes())
    except EOFError:
        code = worker.process.wait(60)
        worker.end()
        if deaths:
            results[rank] = Died(code)
        else:
            errors[rank] = AssertionError(f"the process of rank {rank} died with exit code {code}")
        return
    if fine:
        results[rank] = value
    else:
        value.__cause__ = Remote(text)
        errors[rank] = value


def _show(waiting: dict[int, _Process]) -> None:
    for rank, worker in waiting.items():
        print(f"--- rank {rank}", file=sys.stderr, flush=True)
        worker.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)  # let it write before the next one does


def procs(
    n: int,
    fn: Callable[[Any], Any],
    *,
    wire: str = "",
    deadline: float = 300.0,
    deaths: bool = False,
) -> list[Any]:
    """Run ``fn(transport)`` in n processes, over ``wire``: "shm" or "tcp" (default: shm)."""
    kind = wire or ("shm" if importlib.util.find_spec("farandole.core.transports.shm") else "tcp")
    secret, scope = new_secret(), f"test{os.getpid()}-{time.monotonic_ns()}"
    if kind == "shm":
        return spread(
            n, lambda rank: _over_shm(rank, n, secret, scope, fn), deadline=deadline, deaths=deaths
        )
    from farandole.net.store import StoreServer

    server = StoreServer(secret)
    address = server.address
    try:
        return spread(
            n,
            lambda rank: _over_tcp(rank, n, secret, scope, address, fn),
            deadline=deadline,
            deaths=deaths,
        )
    finally:
        server.close()


def _over_shm(rank: int, n: int, secret: str, scope: str, fn: Callable[[Any], Any]) -> Any:
    from farandole.core.transports import shm

    return _run(over(shm.connect(rank, n, secret, scope, START)), fn)


def _over_tcp(
    rank: int, n: int, secret: str, scope: str, address: str, fn: Callable[[Any], Any]
) -> Any:
    from farandole.core.transports import tcp
    from farandole.net.store import StoreClient

    store = StoreClient(address, secret)
    try:
        return _run(over(tcp.connect(rank, n, secret, scope, store, START)), fn)
    finally:
        store.close()


def _run(transport: Any, fn: Callable[[Any], Any]) -> Any:
    try:
        return fn(transport)
    except BaseException as error:
        transport.abort(f"rank {transport.rank} failed: {error!r}")
        raise
    finally:
        transport.close()
