"""The parts of a job's start that do not depend on its size: environment, facts, function, log."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base import log
from farandole.base.log import logger
from farandole.base.package import PYTHON
from farandole.base.types import Slot
from farandole.errors import JobFailedError, SettingsError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.doubts import doubts
from farandole.job.config.fields import variables
from farandole.job.launch.job import Job
from farandole.job.launch.output import OutputStreams, is_terminal
from farandole.job.report import keys, pickling
from farandole.net.store import StoreServer
from farandole.net.store.ports import free_port

if TYPE_CHECKING:
    import logging


@contextlib.contextmanager
def prepared(job: Job) -> Iterator[bytes | None]:
    """Show warnings of the driver and of the job's settings, and return the job's packed function;
    None for a command.
    """
    with visible_log():
        for doubt in doubts(job.settings, {**os.environ, **job.env}):
            logger.warning("%s", doubt)
        yield None if job.call is None else pack(job)


@contextlib.contextmanager
def served(store: StoreServer, streams: OutputStreams, close: Callable[[], None]) -> Iterator[None]:
    """Close at the end, in this order: the output, the places of the job's processes (``close``),
    which may still store output, and the store.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(store.close)
        stack.callback(close)
        stack.callback(streams.close)
        yield


def results(store: StoreServer, slots: Sequence[Slot]) -> list[Any]:
    """Return the function's results in the order of ``slots``, and remove them from the store.

    Raises JobFailedError for a rank without a result, or with a result that cannot be unpickled.
    """
    results = []
    for slot in slots:
        data = store.pop(keys.result(slot.rank))
        if data is None:
            raise JobFailedError(
                f"Rank {slot.rank} on {slot.host} exited with code 0 before its function returned"
                " (os._exit or exec)",
                rank=slot.rank,
                host=slot.host,
            )
        try:
            results.append(pickling.unpack(data))
        except Exception as error:  # the classes in it may raise any error
            raise JobFailedError(
                f"the result of rank {slot.rank} on {slot.host} cannot be unpickled here:"
                f" {type(error).__name__}: {error}; return plain data (numbers, arrays,"
                " state_dicts)",
                rank=slot.rank,
                host=slot.host,
            ) from error
    return results


def pack(job: Job) -> bytes:
    """Return the pickled call of the job's function, and warn if it is large."""
    assert job.call is not None
    what = _what(job.call[0])
    packed = pickling.pack_call(job.call)
    if 0 < job.heavy < len(packed):
        logger.warning("%s", pickling.weigh(job.call, what, len(packed)))
    return packed


def title(job: Job) -> str:
    """Return the name of the job's program or function."""
    return (
        os.path.basename(job.command[0])
        if job.call is None
        else getattr(job.call[0], "__name__", "a function")
    )


def worker_command() -> list[str]:
    """Return the command that every launcher starts.

    ``-P`` keeps a user's file named ``json.py`` from shadowing the standard library.
    """
    return [
        sys.executable,
        *(["-P"] if sys.version_info >= (3, 11) else []),
        "-m",
        "farandole.job.worker",
    ]


def _what(function: Callable[..., Any]) -> str:
    return f"the function {getattr(function, '__qualname__', repr(function))!r} with its arguments"


def describe(job: Job, slots: Sequence[Slot], *, elsewhere: bool) -> bytes:
    """Return the facts about the job that its processes read from the store, as JSON.

    ``slots``: the places of the ranks; empty in an elastic job. ``elsewhere``: whether ranks may
    run on other machines.
    """
    path = [os.path.abspath(folder) for folder in sys.path] if job.call is not None else []
    places = [
        [s.rank, s.host, s.local_rank, s.local_size, s.cross_rank, s.cross_size, s.size]
        for s in slots
    ]
    facts = {
        "command": list(job.command),
        "slots": places,
        "path": path,
        "elsewhere": elsewhere,
        "restarts": job.settings.max_restarts > 0,
        "python": PYTHON,
        "port": free_port(),
    }
    cell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
    return json.dumps({**facts, "first_only": job.first_only, "cell": cell}).encode()


def environment(job: Job, store: StoreServer, secret: str, launcher: str) -> dict[str, str]:
    """Return the variables of the job's processes: its size, the address and secret of its store,
    the name of its launcher, its settings, and the user's own variables.
    """
    placement, connection = (
        Placement(size=job.np),
        Connection(store=store.address, secret=secret, launcher=launcher, shares=_shares(job)),
    )
    adjustable = variables(Settings)
    known = variables(Placement, Connection) | adjustable  # the adjustable ones are in the settings
    mine = {name: value for name, value in job.env.items() if name not in known}
    set_by_user = {name for name in (*os.environ, *job.env) if name in adjustable}
    # Otherwise a job that is started by a rank of this one would be elastic, too.
    settings = job.settings.replace(min_np=0, max_np=0, max_restarts=0, host_discovery_script="")
    own_variables = {
        **placement.to_env(),
        **connection.to_env(),
        **settings.to_env(set_by_user),
    }
    if job.elastic is not None:
        own_variables["HOROVOD_ELASTIC"] = "1"  # as in Horovod
    return {**mine, **own_variables, "PYTHONUNBUFFERED": "1"}


def _shares(job: Job) -> int:
    """Return the number of shares of the job's global batch; 0 if it is not fixed.

    Raises SettingsError for a strategy or a codec, with which the sums depend on the ranks.
    """
    settings = job.settings
    if not settings.fixed_global_batch:
        return 0
    for flag, value in (("--codec", settings.codec), ("--strategy", settings.strategy)):
        if value not in ("", "allreduce"):
            raise SettingsError(
                f"{flag} {value} is incompatible with --fixed-global-batch, which sums the"
                " gradients of all shares in one order. Remove one of the two"
            )
    return job.np if job.elastic is None else job.elastic.options.max_np or job.np


@contextlib.contextmanager
def visible_log() -> Iterator[None]:
    """Show warnings on stderr during a job, even if the program has not set up logging."""
    added: list[logging.Handler] = []

    def show(found: logging.Logger) -> None:
        import logging

        strangers = [
            handler for handler in found.handlers if not isinstance(handler, logging.NullHandler)
        ]
        if strangers or logging.getLogger().handlers:
            return
        handler = logging.StreamHandler(sys.stderr)
        clear = "\r\x1b[2K" if is_terminal(sys.stderr) else ""  # the status may be on this line
        handler.setFormatter(logging.Formatter(f"{clear}farandole: %(message)s"))
        found.addHandler(handler)
        added.append(handler)

    log.prepare(show)
    try:
        yield
    finally:
        log.forget(show)
        for handler in added:
            logger.removeHandler(handler)


@contextlib.contextmanager
def output_streams(job: Job) -> Iterator[OutputStreams]:
    """Open the output of the ranks, and report where its files are."""
    display = job.display
    streams = OutputStreams(
        job.np,
        display.out,
        display.err,
        messages=display.messages,
        directory=display.output_dir,
        files=display.files,
        timestamp=display.prefix_timestamp,
        shown=display.show_ranks,
    )
    try:
        for note in [] if display.quiet else streams.notes:
            display.note(note)
        yield streams
    finally:
        streams.close()
