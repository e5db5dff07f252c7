"""``horovod.spark.run``: a function on Spark tasks, with Horovod's arguments."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from farandole.base.log import logger
from farandole.errors import SettingsError
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, check_call, settings_for
from farandole.job.launch.launchers.spark import SparkLauncher
from farandole.job.launch.plan import check_np
from farandole.spark.runner import HEAVY


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` in ``num_proc`` simultaneous Spark tasks, and return the results
    in rank order.

    ``num_proc``: by default ``spark.default.parallelism``. ``start_timeout``: seconds until all
    tasks must be running, by default HOROVOD_SPARK_START_TIMEOUT or 600. ``env``: environment
    variables of the ranks; this process's own are not inherited. ``stdout``, ``stderr``: streams
    for the ranks' output, by default this process's own. ``executable``: the ranks' Python, by
    default the Python of Spark's tasks. ``verbose=0``: do not report the start. ``use_mpi``,
    ``use_gloo``, ``extra_mpi_args`` and ``nics`` have no effect: there is one transport, which
    finds its own network interfaces.

    Raises JobFailedError (a RuntimeError) with the traceback of the failed rank; RendezvousError
    when the tasks do not start in time; SettingsError (a ValueError) for impossible requests: no
    session, too few slots.
    """
    if use_gloo and use_mpi:
        raise SettingsError("Argument use_gloo and use_mpi only allow one set True.")
    unused = {"use_mpi": use_mpi, "extra_mpi_args": extra_mpi_args, "nics": nics}
    if any(unused.values()):
        logger.info(
            "no effect on Spark tasks: %s",
            ", ".join(name for name, value in unused.items() if value),
        )
    call, settings = check_call(fn, args, kwargs), settings_for(env or {}, {})
    launcher = SparkLauncher(
        start_timeout=start_timeout, setting="the start_timeout parameter", python=executable or ""
    )
    np = check_np(launcher.default_parallelism() if num_proc is None else num_proc)
    job = Job(
        np=np,
        call=call,
        settings=settings,
        env=env or {},
        launcher=launcher,
        heavy=HEAVY,
        display=Display(
            prefix_timestamp=prefix_output_with_timestamp,
            verbose=verbose > 1,
            quiet=not verbose,
            out=stdout or sys.stdout,
            err=stderr or sys.stderr,
        ),
    )
    return as_without_driver(job)


def as_without_driver(job: Job) -> list[Any]:
    """Run ``job`` and return its results. A signal that ends it has its usual effect: Ctrl-C raises
    KeyboardInterrupt.
    """
    try:
        return driver.run(job)
    except driver.Interrupted as interrupted:
        error = interrupted.with_traceback(None)
    signal.raise_signal(error.signum)
    raise error
