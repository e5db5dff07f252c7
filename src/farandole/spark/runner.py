"""Databricks' ``HorovodRunner``, on Spark and on the driver's machine."""

from __future__ import annotations

import io
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO, cast

from farandole.errors import JobFailedError, SettingsError
from farandole.job.launch import driver
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job, check_call, settings_for
from farandole.job.launch.launchers.spark import SparkLauncher
from farandole.job.spark import guard, session

HEAVY = 10_000_000  # bytes of a pickled function above which a warning is logged
VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """Run a function on ranks: ``HorovodRunner(np=2).run(train, lr=0.1)`` calls ``train(lr=0.1)``
    on two Spark tasks that start together.

    ``np``: the number of Spark tasks; a negative number starts as many processes on the driver's
    machine, whose output appears here; 0 uses all task slots of the cluster (deprecated).
    ``driver_log_verbosity``: with "log_callback_only" this process shows only messages of
    ``log_to_driver`` and ``LogCallback``, and the ranks' other output goes to the log of the first
    task; "all" shows that output here, too.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise SettingsError(
                f"np={np!r} is a {type(np).__name__}, but must be a whole number: N for N Spark"
                " tasks, or -N for N processes of this machine"
            )
        if driver_log_verbosity not in VERBOSITIES:
            raise SettingsError(
                f"driver_log_verbosity={driver_log_verbosity!r} must be 'all' or"
                " 'log_callback_only'"
            )
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on every rank, and return rank 0's value.

        Raises JobFailedError with the traceback of the failed rank; SettingsError if the job cannot
        start (too few task slots; an object that cannot be pickled).
        """
        __tracebackhide__ = True  # IPython and pytest omit this frame
        call = check_call(main, (), kwargs)
        try:
            return driver.run(self._job(call))[0]
        except driver.Interrupted as interrupted:
            number, error = interrupted.signum, interrupted
        except JobFailedError as failure:
            # the message has the rank's traceback; this process's would bury it
            raise failure.with_traceback(None) from None
        signal.raise_signal(number)  # raise the usual error for the signal: KeyboardInterrupt
        raise error

    def _job(self, call: Any) -> Job:
        settings = settings_for({}, {})
        if self.num_processor < 0:
            return Job(
                np=-self.num_processor,
                call=call,
                settings=settings,
                first_only=True,
                heavy=HEAVY,
                launcher="local",
                display=Display(),
                env={guard.FILES: session.files()},
            )
        everything = self.driver_log_verbosity == "all"
        launcher = SparkLauncher(
            title=f"HorovodRunner: {_name(call[0])}", create=True, log=not everything
        )
        np = self.num_processor
        if np == 0:
            warnings.warn(
                "HorovodRunner(np=0) is deprecated. Use a number of tasks",
                DeprecationWarning,
                stacklevel=3,
            )
            np = launcher.all_slots()
        log = sys.stdout if everything else cast(TextIO, FirstLog(launcher))
        return Job(
            np=np,
            call=call,
            settings=settings,
            first_only=True,
            heavy=HEAVY,
            launcher=launcher,
            display=Display(out=log, err=sys.stderr if everything else log, say=sys.stderr),
        )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class FirstLog(io.TextIOBase):
    """A text stream that ends in the log of the first Spark task."""

    def __init__(self, launcher: SparkLauncher) -> None:
        self._launcher = launcher

    def write(self, text: str) -> int:
        self._launcher.to_log(text)
        return len(text)
