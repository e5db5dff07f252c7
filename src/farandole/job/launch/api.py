"""``farandole.run`` and ``farandole.Runner``, which run a function on several processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from farandole.errors import JobFailedError, SettingsError
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.elastic_plan import MOST_RANKS, plan_of
from farandole.job.launch.job import Job, check_call, check_ranks, settings_for
from farandole.job.launch.plan import check_np

if TYPE_CHECKING:
    from farandole.job.elastic.discovery import Source

T = TypeVar("T")


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | None = None,
    env: Mapping[str, str] | None = None,
    hosts: str | None = None,
    launcher: str = "auto",
    output_dir: str | None = None,
    prefix_timestamp: bool = False,
    show_ranks: Sequence[int] | None = None,
    verbose: bool = False,
    discovery: Source = None,
    **settings: Any,
) -> list[T]:
    """Call ``fn(*args, **kwargs)`` on ``np`` new processes and return the results, in rank order.

    The function may be a lambda or come from a script, a notebook or the REPL; the processes do not
    run that script again.

    Arguments:
        fn: The function to call.
        args, kwargs: Its arguments.
        np: The number of processes; 1 by default. In an elastic job (``min_np=2, max_np=8``), the
            number at the start, ``min_np`` by default.
        env: Extra environment variables.
        hosts: Hosts with slots, such as ``h1:2,h2:4``.
        launcher: The name of a launcher; ``auto`` chooses one.
        output_dir: A folder for each rank's output.
        prefix_timestamp: Whether to prefix each line of output with the time.
        show_ranks: The ranks whose output is shown. ``output_dir`` and errors still contain all
            output.
        verbose: Whether to report more events.
        discovery: The hosts of an elastic job: a function that returns slots by host
            (``{"worker-0": 2}``), called every second, or an object with ``find()`` and
            ``describe()``.
        settings: Any setting by name (``start_timeout=60``); ``farandole config`` lists them.

    Raises:
        JobFailedError: A rank failed; includes that rank's traceback.
        SettingsError: The job cannot start.
    """
    __tracebackhide__ = True  # IPython and pytest omit this frame
    if np is not None:
        check_np(np)
    call = check_call(fn, args, kwargs)
    known = settings_for(env or {}, settings)
    elastic = plan_of(np, known, hosts, discovery)
    start = (np or 1) if elastic is None else elastic.options.np
    most = start if elastic is None else elastic.options.max_np or MOST_RANKS
    job = Job(
        np=start,
        call=call,
        settings=known,
        env=env or {},
        hosts=hosts,
        launcher=launcher,
        display=Display(
            output_dir=output_dir,
            prefix_timestamp=prefix_timestamp,
            verbose=verbose,
            show_ranks=None if show_ranks is None else check_ranks(show_ranks, most),
        ),
        elastic=elastic,
    )
    try:
        return driver.run(job)
    except driver.Interrupted as interrupted:
        error = interrupted.with_traceback(None)
    except (JobFailedError, SettingsError) as failure:
        # The message is complete; the driver's frames would bury it.
        raise failure.with_traceback(None) from None
    # Behave as without the driver: Ctrl-C raises KeyboardInterrupt.
    signal.raise_signal(error.signum)
    raise error


class Runner:
    """Runs a function on ``np`` processes: ``Runner(np=4).run(train, lr=0.1)`` returns rank 0's
    result.

    Takes the options of ``farandole.run``.
    """

    def __init__(self, *, np: int, **options: Any) -> None:
        self.np = check_np(np)
        self.options = options

    def run(self, fn: Callable[..., T], **kwargs: Any) -> T:
        __tracebackhide__ = True
        return run(fn, kwargs=kwargs, np=self.np, **self.options)[0]
