"""The part of ``farandole-horovod`` that is included in ``farandole``: Horovod's names and its
command.

The packages ``horovod`` and ``sparkdl`` of that distribution contain only names; their behaviour is
implemented here.
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
SPARKDL = "1.6.0"  # the last published version, whose HorovodRunner is provided

_ENDED = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job"
    " to be terminated. The first process to do so was:"
)


def speak_as_horovod() -> None:
    """Make errors call this library by the name that the program has imported."""
    NotInitializedError.product = "Horovod"


def check_alone(*names: str) -> None:
    """Raise ImportError if the original Horovod (or sparkdl) is also installed, because both
    own the same package.
    """
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        raise ImportError(
            f"the distribution {name!r} {found.version} is installed in {found.locate_file('')},"
            " and farandole-horovod provides the same package. Keep only one. For Farandole: pip"
            f" uninstall -y {name} farandole-horovod, then pip install ./compat in a clone of"
            f" Farandole. For {name}: pip uninstall -y farandole-horovod && pip install"
            f" --force-reinstall {name}",
            name=name,
        )


def horovod_message(error: JobFailedError) -> str:
    """Return the failed process and its exit code in the format of Horovod's launcher, which
    programs parse; empty without such a process.
    """
    return (
        ""
        if error.rank < 0
        else f"\n{_ENDED}\nProcess name: {error.rank}\nExit code: {error.exit_code}"
    )


def with_note(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap ``function`` so that its JobFailedError ends with Horovod's message."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except JobFailedError as error:
            error.args = (f"{error}{horovod_message(error)}",)
            raise

    return wrapped
