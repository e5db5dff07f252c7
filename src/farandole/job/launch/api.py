"""``farandole.run`` and ``farandole.Runner``: a function on several processes, from Python."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from farandole.errors import JobFailedError, SettingsError
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, check_call, check_ranks, settings_for
from farandole.job.launch.plan import check_np

T = TypeVar("T")


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int = 1,
    env: Mapping[str, str] | None = None,
    hosts: str | None = None,
    launcher: str = "auto",
    output_dir: str | None = None,
    prefix_timestamp: bool = False,
    show_ranks: Sequence[int] | None = None,
    verbose: bool = False,
    **settings: Any,
) -> list[T]:
    """Call ``fn(*args, **kwargs)`` on ``np`` new processes and return the results, in rank order.

    The function may be a lambda or come from a script, a notebook or the REPL; the processes do not
    run that script again. ``env``: extra environment variables; ``output_dir``: keep each rank's
    output in files there; ``show_ranks``: show the output of these ranks only (all of it still goes
    to ``output_dir`` and into errors); ``settings``: any setting by name (``start_timeout=60``;
    ``farandole config`` lists them).

    Raises JobFailedError when a rank fails, with that rank's traceback; SettingsError when the job
    cannot start.
    """
    __tracebackhide__ = True  # IPython and pytest leave our frame out
    check_np(np)
    call = check_call(fn, args, kwargs)
    job = Job(
        np=np,
        call=call,
        settings=settings_for(env or {}, settings),
        env=env or {},
        hosts=hosts,
        launcher=launcher,
        display=Display(
            output_dir=output_dir,
            prefix_timestamp=prefix_timestamp,
            verbose=verbose,
            show_ranks=None if show_ranks is None else check_ranks(show_ranks, np),
        ),
    )
    try:
        return driver.run(job)
    except driver.Interrupted as interrupted:
        error = interrupted.with_traceback(None)
    except (JobFailedError, SettingsError) as failure:
        # its text tells all; our frames would bury that
        raise failure.with_traceback(None) from None
    # as if we had not been in between: KeyboardInterrupt for Ctrl-C
    signal.raise_signal(error.signum)
    raise error


class Runner:
    """``Runner(np=4).run(train, lr=0.1)``: the value of rank 0. Takes the options of
    ``farandole.run``.
    """

    def __init__(self, *, np: int, **options: Any) -> None:
        self.np = check_np(np)
        self.options = options

    def run(self, fn: Callable[..., T], **kwargs: Any) -> T:
        __tracebackhide__ = True
        return run(fn, kwargs=kwargs, np=self.np, **self.options)[0]
