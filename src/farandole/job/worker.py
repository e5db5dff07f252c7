"""The program that every launcher starts: ``python -m farandole.job.worker``.

It determines its rank and then runs the user's program. A command replaces this process (exec); a
function is fetched from the store and called, and its result is stored.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.base.host import cores
from farandole.base.package import PYTHON
from farandole.base.types import Slot
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    RendezvousError,
    SettingsError,
)
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import variables
from farandole.job.config.horovod import HOROVOD_FIXED
from farandole.job.config.output_files import FILES, files
from farandole.job.config.rank_variables import ORIGIN, PROCESS, RUN_VARIABLE, STARTERS
from farandole.job.config.torchrun import AGENT_STORE, torch_variables
from farandole.job.plugins import registry
from farandole.job.report import keys
from farandole.net.store import StoreClient
from farandole.net.store.ports import free_port

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # a shell's exit statuses
_PR_SET_PDEATHSIG = 1
# Python ignores these signals, and the program would inherit that through exec.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> int:
    _die_with_parent()
    connection, settings = Connection.from_env(), Settings.from_env()
    if not connection.store:
        sys.stderr.write(
            "farandole.job.worker is started by a launcher (farandole run), not by hand\n"
        )
        return 2
    here = registry.load("launcher", connection.launcher)().placement(os.environ)
    if here is None:
        sys.stderr.write(
            "farandole.job.worker: the environment does not define the rank of this process in"
            f" its {connection.launcher} job\n"
        )
        return 2
    rank = here.rank
    try:
        client = StoreClient(connection.store, connection.secret, timeout=settings.start_timeout)
        job = json.loads(client.get(keys.JOB, settings.start_timeout))
    except (RendezvousError, AuthenticationError, HorovodInternalError) as error:
        sys.stderr.write(f"farandole: rank {rank} cannot join its job: {error}\n")
        return 1
    slots = [Slot(*fields) for fields in job["slots"]]
    placement = identify(slots, here) if slots else _expected(client, here, settings)
    os.environ.update(environment(placement, connection, settings))
    if RUN_VARIABLE in os.environ:
        # imported here because most jobs leave no run
        from farandole.job.runs import node

        node.enter(placement.rank, placement.size, os.environ)
    os.environ[ORIGIN] = _origin(os.environ)
    os.environ[FILES] = files(settings)
    try:
        first = _store_of_first(slots, rank, client, settings, job)
    except SettingsError as error:  # an interface that this host does not have
        _report(client, rank, str(error))
        return 1
    os.environ.update(torch_variables(placement, *first))
    if RUN_VARIABLE in os.environ:
        _name_peers(slots, placement, client, settings)
    # Set by a torchrun above this job; here, rank 0 creates the store.
    os.environ.pop(AGENT_STORE, None)
    if job["command"]:
        return _become(job["command"], client, rank)
    if job["python"] != PYTHON:
        _report(client, rank, _other_python(job["python"]))
        return 1
    return _call(job, client, rank, settings.start_timeout)


def _name_peers(
    slots: Sequence[Slot],
    placement: Placement,
    client: StoreClient,
    settings: Settings,
) -> None:
    """Set the names of other ranks' addresses that scripts of a run read."""
    from farandole.job.runs import node

    node.name_master(os.environ)
    workers = os.environ.get(node.TF_WORKERS_VARIABLE)
    if not workers:
        return
    here = "127.0.0.1"
    if len({slot.host for slot in slots}) > 1:
        from farandole.net import interfaces

        here = interfaces.outside(client.host, settings.network_interfaces)
    client.set(keys.task(placement.rank), f"{here}:{free_port()}".encode())
    addresses = [
        bytes(client.get(keys.task(rank), settings.start_timeout)).decode()
        for rank in range(placement.size)
    ]
    os.environ["TF_CONFIG"] = node.tf_config(placement.rank, int(workers), addresses)


def _expected(client: StoreClient, here: Placement, settings: Settings) -> Placement:
    """Return the placement with which a process of an elastic job starts; its number is in the
    place of a rank.
    """
    return here.replace(**json.loads(client.get(keys.start(here.rank), settings.start_timeout)))


def identify(slots: Sequence[Slot], here: Placement) -> Placement:
    """Return the complete placement of a rank, given its partial placement and all slots."""
    slot = slots[here.rank]
    return here.replace(
        size=slot.size,
        local_rank=slot.local_rank,
        local_size=slot.local_size,
        cross_rank=slot.cross_rank,
        cross_size=slot.cross_size,
        hostname=slot.host,
        homogeneous=len({slot.local_size for slot in slots}) == 1,
    )


def environment(placement: Placement, connection: Connection, settings: Settings) -> dict[str, str]:
    """Return the variables of one rank's program, including those that Horovod scripts read."""
    # with defaults, because programs read these variables directly
    who = placement.to_env(variables(Placement))
    fixed = {**HOROVOD_FIXED, "PYTHONUNBUFFERED": "1"}
    chosen = {}
    # The number of threads may change the last bits of a product of matrices, so in a job with a
    # fixed global batch it does not follow from the current number of ranks.
    ranks = connection.shares or placement.local_size
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        # Otherwise each rank would start a thread per core, and the ranks would compete for cores.
        chosen["OMP_NUM_THREADS"] = str(max(1, cores() // ranks))
    if placement.rank and "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        # TensorFlow's lines about the machine are the same on all ranks; errors still appear
        chosen["TF_CPP_MIN_LOG_LEVEL"] = "1"
    networks = {}
    if settings.network_interfaces:
        wires = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")  # read by torch.distributed
        networks = {name: settings.network_interfaces for name in wires if name not in os.environ}
    return {**settings.to_env(), **connection.to_env(), **who, **fixed, **chosen, **networks}


def _origin(env: Mapping[str, str]) -> str:
    """Return this rank's origin, with which ``init()`` detects processes that mpirun or srun
    start within the rank.
    """
    if not any(name in env for name in STARTERS):
        return ""
    # Imported here because jobs of other launchers do not need it.
    from farandole.job.bootstrap.origin import origin

    return origin(env)


def _store_of_first(
    slots: Sequence[Slot],
    rank: int,
    client: StoreClient,
    settings: Settings,
    job: Mapping[str, Any],
) -> tuple[str, int]:
    """Return rank 0's address and a port, at which rank 0 creates torch.distributed's store for
    all ranks.

    In an elastic job, ranks get these when they form a membership, except for programs without
    memberships, which are restarted: there, process 0 is rank 0.
    """
    alone = len({slot.host for slot in slots}) == 1
    elsewhere = job["elsewhere"] and (bool(slots) or job["restarts"])
    if not elsewhere and (alone or not slots):
        return "127.0.0.1", job["port"]  # a port of the driver's host
    if rank == 0:
        # imported here because a job on one host does not need it
        from farandole.net import interfaces

        address = (
            "127.0.0.1" if alone else interfaces.outside(client.host, settings.network_interfaces)
        )
        client.set(keys.FIRST, json.dumps([address, free_port()]).encode())
    address, port = json.loads(client.get(keys.FIRST, settings.start_timeout))
    return address, port


def _die_with_parent() -> None:
    """End this process when the launcher's process ends, even after exec."""
    import _ctypes  # as in the reaper: ctypes takes milliseconds to load

    # None searches the loaded libraries.
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_LAZY), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(prctl, (_PR_SET_PDEATHSIG, int(signal.SIGTERM)))


def _become(command: Sequence[str], client: StoreClient, rank: int) -> int:
    """Replace this process by the user's program. Returns an exit code if that fails."""
    os.environ[PROCESS] = str(os.getpid())  # see reporter.install_early
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), os.environ)
    except (FileNotFoundError, NotADirectoryError):
        code, text = NOT_FOUND, _not_found(command[0])
    except PermissionError:
        code, text = NOT_EXECUTABLE, f"the command {command[0]!r} cannot be executed"
    except (OSError, ValueError) as error:  # also for an empty command
        code, text = NOT_EXECUTABLE, f"the command {command[0]!r} cannot be executed: {error}"
        if getattr(error, "errno", 0) == errno.ENOEXEC:
            text += (
                "; it is not a program for this processor, or a script without a line like"
                " #!/bin/sh"
            )
    for number in _RESTORED:
        signal.signal(number, signal.SIG_IGN)  # ignore them again while reporting
    if command[0].endswith(".py"):
        text += f"; a script needs its interpreter: python {command[0]}"
    _report(client, rank, text)
    return code


def _not_found(program: str) -> str:
    """Return why the kernel did not find the program: a script may exist without its
    interpreter.
    """
    for folder in [""] if os.path.dirname(program) else os.get_exec_path():
        with contextlib.suppress(OSError), open(os.path.join(folder, program), "rb") as file:
            line = file.readline(256).rstrip(b"\n")
            if line.startswith(b"#!"):
                what = repr(line[2:].decode(errors="replace").strip(" "))
                what += (
                    ": the file has Windows line endings; convert it to Unix line endings"
                    * line.endswith(b"\r")
                )
                return f"the command {program!r} is a script whose interpreter is missing: {what}"
    return f"the command {program!r} was not found"


def _other_python(driver: str) -> str:
    return (
        f"the function comes from Python {driver}, and this rank runs Python {PYTHON}"
        f" ({sys.executable}), which cannot run the other's bytecode. Start the job with Python"
        f" {PYTHON}, have Python {driver} at {sys.executable} on this host, or run a script"
        " (farandole run python train.py)"
    )


def _report(client: StoreClient, rank: int, message: str) -> None:
    """Report why this rank fails before its program has begun."""
    from farandole.job.report.outcome import Outcome

    failure = Outcome(status="error", message=message)
    with contextlib.suppress(HorovodInternalError, AuthenticationError):
        client.set(keys.outcome(rank), failure.to_bytes())


def _call(job: Mapping[str, Any], client: StoreClient, rank: int, timeout: float) -> int:
    """Fetch the function, call it, store its result, and report the outcome."""
    import types

    from farandole.job.report import leftover_threads, pickling, reporter, uninitialized
    from farandole.job.report.outcome import Outcome

    # Replace the worker's own __main__ by one for the function.
    sys.modules["__main__"] = types.ModuleType("__main__")
    first, then = (sys.path, job["path"]) if job["elsewhere"] else (job["path"], sys.path)
    sys.path[:] = [
        *first,
        *(folder for folder in then if folder not in first),
    ]  # the driver's path comes first on the same host
    reporter.install(client, rank)
    if job["cell"]:  # in notebook cells this name needs no import
        vars(builtins)["display"] = _display
    if "FARANDOLE_SPARK_FILES" in os.environ:
        from farandole.job.spark import guard

        guard.install()
    try:
        function, args, kwargs = pickling.unpack(client.get(keys.FUNCTION, timeout))
        _fill_main(function)
        result = function(*args, **kwargs)
        del args, kwargs
        if "farandole.job.report.figures" in sys.modules:
            sys.modules["farandole.job.report.figures"].FigureManager.pyplot_show()
        if job["first_only"] and Placement.from_env().rank:
            result = None
        packed = pickling.pack(
            result, f"the result of {getattr(function, '__qualname__', 'the function')!r}"
        )
        client.set(keys.result(rank), packed)
        uninitialized.after_function(client)
    except SystemExit as end:
        if end.code in (None, 0):
            client.set(keys.result(rank), pickling.pack(None, "None"))
            leftover_threads.watch()
        raise
    except BaseException as error:
        # Report before this process's sockets close, i.e. before another rank can fail because of
        # it.
        failure = Outcome.of(error, skip=1)
        reporter.report(failure)
        sys.stderr.write(failure.traceback)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    leftover_threads.watch()
    return 0


def _display(*shown: Any, **_: Any) -> None:
    """Print objects as IPython's ``display`` does without a shell."""
    sys.stdout.write("".join(f"{each}\n" for each in shown))


def _fill_main(function: Any) -> None:
    """Let pickle find the classes of the user's ``__main__`` by name (as torch.save does)."""
    names = getattr(function, "__globals__", {})
    # __mp_main__: the driver was spawned by multiprocessing.
    if names.get("__name__") in ("__main__", "__mp_main__"):
        main = sys.modules[names["__name__"]] = sys.modules["__main__"]
        for name, value in names.items():
            if not name.startswith("__"):
                setattr(main, name, value)


if __name__ == "__main__":
    sys.exit(main())
