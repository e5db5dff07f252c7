"""The part of ``farandole-horovod`` that is not in ``farandole`` itself: Horovod's names for
things, and its command.

The packages ``horovod`` and ``sparkdl`` of that distribution hold names alone; their behaviour is
here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from typing import ParamSpec, TypeVar

from farandole.errors import JobFailedError, NotInitializedError

P = ParamSpec("P")
T = TypeVar("T")
HOROVOD = "0.28.1"  # the version whose API this is, and ``horovod.__version__``
SPARKDL = "1.6.0"  # the last that was published, whose HorovodRunner this is

_ENDED = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job"
    " to be terminated. The first process to do so was:"
)
ELASTIC = "elastic jobs, whose ranks come and go"
FIXED = (
    "leave it out and give the number of processes and their hosts; programs with hvd.elastic.run"
    " run in a job of fixed size, too"
)


def speak_as_horovod() -> None:
    """From now on, errors call this library by the program's name for it."""
    NotInitializedError.product = "Horovod"


def check_alone(*names: str) -> None:
    """Raise ImportError if the real Horovod (or sparkdl) is installed, too: both would own the same
    package.
    """
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        raise ImportError(
            f"the distribution {name!r} {found.version} is installed in {found.locate_file('')},"
            " and farandole-horovod offers the same package. Only one of the two can be there. To"
            f" run on Farandole: pip uninstall -y {name} farandole-horovod, then pip install"
            f" ./compat in a clone of Farandole. To stay with {name}: pip uninstall -y"
            f" farandole-horovod && pip install --force-reinstall {name}",
            name=name,
        )


def missing(name: str) -> NotImplementedError:
    """The error of asking for an elastic job."""
    why = f"this version of Farandole does not have {ELASTIC}, yet: {FIXED}"
    return NotImplementedError(f"{name} is not available: {why}")


def in_horovods_words(error: JobFailedError) -> str:
    """Which process ended how, as Horovod's launcher says it and programs look for it; empty if
    nobody did.
    """
    return (
        ""
        if error.rank < 0
        else f"\n{_ENDED}\nProcess name: {error.rank}\nExit code: {error.exit_code}"
    )


def with_note(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, whose JobFailedError ends in Horovod's words."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except JobFailedError as error:
            error.args = (f"{error}{in_horovods_words(error)}",)
            raise

    return wrapped
