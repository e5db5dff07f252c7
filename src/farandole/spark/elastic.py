"""``horovod.spark.run_elastic``: a function on Spark tasks that may be lost or added."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from farandole.base.log import logger
from farandole.errors import SettingsError
from farandole.job.elastic.discovery.contract import FixedHosts
from farandole.job.elastic.options import options_of
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, check_call, settings_for
from farandole.job.launch.launchers.spark import SparkLauncher
from farandole.job.launch.plan import check_np
from farandole.spark.run import as_without_driver
from farandole.spark.runner import HEAVY


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` in Spark tasks that may fail, be lost or added, and return the
    results of the last ranks in rank order.

    ``fn`` trains with ``hvd.elastic.run`` and a state. Each attempt of a Spark task is a host with
    one slot. Spark retries a task whose rank fails, where ``spark.excludeOnFailure`` allows it; the
    other ranks continue.

    Arguments:
        fn, args, kwargs: The function and its arguments.
        num_proc: The number of tasks to start with; by default ``spark.default.parallelism``.
        min_num_proc: The minimum number of ranks; by default ``num_proc``.
        max_num_proc: The maximum number of ranks, and of tasks; by default ``num_proc``.
        start_timeout: Seconds until ``num_proc`` tasks must be running; by default
            HOROVOD_SPARK_START_TIMEOUT or 600.
        elastic_timeout: Seconds to wait for ``min_num_proc`` ranks after a loss; by default
            HOROVOD_ELASTIC_TIMEOUT or 600.
        reset_limit: The maximum number of changes of the ranks; by default unlimited.
        env: Environment variables of the ranks; this process's own are not inherited.
        stdout, stderr: Streams for the ranks' output; by default this process's own.
        verbose: 0: do not report the start and changes of the ranks. 2: report more.
        nics: No effect: the transport finds its own network interfaces.
        prefix_output_with_timestamp: Whether to prefix each line of output with the time.
        min_np, max_np: Horovod's earlier names of ``min_num_proc`` and ``max_num_proc``.

    Raises:
        JobFailedError: The job cannot continue (a RuntimeError); includes the traceback of the
            failed rank.
        RendezvousError: The tasks do not start in time.
        SettingsError: The request is impossible (a ValueError): no session, too few slots,
            contradictory bounds.
    """
    if nics:
        logger.info("no effect on Spark tasks: nics")
    call = check_call(fn, args, kwargs)
    launcher = SparkLauncher(start_timeout=start_timeout, setting="the start_timeout parameter")
    np = check_np(launcher.default_parallelism() if num_proc is None else num_proc)
    least = _one("min_num_proc", min_num_proc, "min_np", min_np) or np
    given: dict[str, Any] = {
        "min_np": least,
        "max_np": _one("max_num_proc", max_num_proc, "max_np", max_np) or max(np, least),
        "reset_limit": reset_limit,
        "elastic_timeout": elastic_timeout,
    }
    settings = settings_for(
        env or {}, {name: value for name, value in given.items() if value is not None}
    )
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
        elastic=ElasticPlan(options_of(np, settings), FixedHosts({})),
    )
    return as_without_driver(job)


def _one(name: str, value: int | None, earlier: str, other: int | None) -> int | None:
    """Return the argument passed under its name or its earlier name.

    Raises SettingsError for different values under the two names.
    """
    if value is not None and other is not None and value != other:
        raise SettingsError(
            f"{name}={value} and {earlier}={other} are two names of one argument: pass only {name}"
        )
    return other if value is None else value
