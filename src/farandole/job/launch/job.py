"""Jobs: the command or function, the number of processes, the settings, and the checks before
the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from farandole.errors import SettingsError, did_you_mean
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from farandole.job.config.output_files import of_outer_job
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.launch.contract import Launcher
from farandole.job.launch.display import Display

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Job(NamedTuple):
    """A job, which runs either ``command`` (a program and its arguments) or ``call`` (function,
    args, kwargs) on ``np`` ranks.
    """

    np: int
    settings: Settings
    display: Display
    command: Sequence[str] = ()
    call: Call | None = None
    env: Mapping[str, str] = {}
    hosts: str | None = None
    launcher: str | Launcher = "auto"
    first_only: bool = False  # only rank 0's result is needed
    # Size in bytes from which a pickled call causes a warning that names its large parts; 0
    # disables it.
    heavy: int = 0
    elastic: ElasticPlan | None = None  # None: the job has a fixed size


def settings_for(env: Mapping[str, str], overrides: Mapping[str, Any]) -> Settings:
    """Return a job's settings: this process's variables, overridden by ``env``, then by
    ``overrides``.
    """
    check_env(env)
    adjustable = {setting.name: setting for setting in settings_of(Settings)}
    for name, value in overrides.items():
        if name not in adjustable:
            near = did_you_mean(name, adjustable)
            raise SettingsError(
                f"unknown setting {name!r}{near} (np= is the number of processes; pass arguments"
                f" of the function in args=() or kwargs={{}}; settings: {', '.join(adjustable)})"
            )
        kind = adjustable[name].kind
        wanted: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            raise SettingsError(
                f"{name}={value!r} is a {type(value).__name__}; it must be of type {kind.__name__} "
                f"({adjustable[name].doc})"
            )
    outer = of_outer_job(os.environ)
    own = {name: text for name, text in os.environ.items() if name not in outer}
    return Settings.from_env({**own, **env}).replace(**overrides)


def check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SettingsError(
                f"env[{name!r}]={value!r} must be text, as all environment variables: use str(...)"
            )
        if not name or "=" in name or "\0" in name + value:
            raise SettingsError(
                f"env[{name!r}]={value!r} is not a valid environment variable: names must not"
                " contain '=' or NUL"
            )


def check_call(function: Any, args: Any, kwargs: Any) -> Call:
    """Return the validated call. Raises SettingsError for invalid arguments."""
    if not callable(function):
        raise SettingsError(
            f"the first argument must be a function, not {function!r}; pass the function itself"
            " (train, not train()) and its arguments in args= and kwargs= (by name to"
            " HorovodRunner.run)"
        )
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise SettingsError(
            f"args={args!r} must be a tuple or list of arguments; for one argument: args=(x,);"
            " for two processes: np=2"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise SettingsError(f"kwargs={kwargs!r} must be a dict of arguments by name")
    return function, tuple(args), dict(kwargs or {})


def ranks_of(text: str, np: int) -> tuple[int, ...]:
    """Parse a list of ranks: ``"0,2-3"`` gives (0, 2, 3).

    Raises SettingsError for a number that is not a rank of a job of ``np``.
    """
    found: list[int] = []
    for item in text.split(","):
        first, _, last = item.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise SettingsError(f"--show-ranks={text!r} must be like 0 or 0,2-3")
        check_ranks([int(last)], np)
        found += range(int(first), int(last) + 1)
    return tuple(found)


def check_ranks(ranks: Any, np: int) -> tuple[int, ...]:
    """Return ``ranks`` as a tuple. Raises SettingsError unless all are ranks of a job of ``np``."""
    if isinstance(ranks, str) or not isinstance(ranks, Collection):
        raise SettingsError(f"show_ranks={ranks!r} must be a list of ranks, like [0]")
    wrong = [
        rank
        for rank in ranks
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < np
    ]
    if wrong:
        raise SettingsError(
            f"show_ranks: {wrong[0]!r} is not a rank of a job of {np} (0 to {np - 1})"
        )
    return tuple(ranks)
