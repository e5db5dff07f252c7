"""The distributions of hyperparameters: ``choice``, ``uniform``, ``loguniform`` and others.

Each function returns a list of the distribution's name and arguments, as in Azure ML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Any

from azureml.exceptions import HyperDriveConfigException
from farandole.errors import SettingsError
from farandole.jobs.sweeps import space
from farandole.jobs.sweeps.space import Distribution

Expression = list[Any]


def choice(*options: Any) -> Expression:
    """One of the options, which may also be given as one list or range."""
    if len(options) == 1 and isinstance(options[0], (list, tuple, range)):
        options = tuple(options[0])
    return ["choice", [list(options)]]


def randint(upper: int) -> Expression:
    """Whole numbers from 0 to ``upper`` - 1."""
    return ["randint", [upper]]


def uniform(min_value: float, max_value: float) -> Expression:
    """Numbers between ``min_value`` and ``max_value``, all equally likely."""
    return ["uniform", [min_value, max_value]]


def quniform(min_value: float, max_value: float, q: float) -> Expression:
    """Numbers between ``min_value`` and ``max_value``, rounded to multiples of ``q``."""
    return ["quniform", [min_value, max_value, q]]


def loguniform(min_value: float, max_value: float) -> Expression:
    """``exp(x)`` for ``x`` between ``min_value`` and ``max_value``."""
    return ["loguniform", [min_value, max_value]]


def qloguniform(min_value: float, max_value: float, q: float) -> Expression:
    """Numbers as of ``loguniform``, rounded to multiples of ``q``."""
    return ["qloguniform", [min_value, max_value, q]]


def normal(mu: float, sigma: float) -> Expression:
    """A normal distribution with mean ``mu`` and standard deviation ``sigma``."""
    return ["normal", [mu, sigma]]


def qnormal(mu: float, sigma: float, q: float) -> Expression:
    """A normal distribution, rounded to multiples of ``q``."""
    return ["qnormal", [mu, sigma, q]]


def lognormal(mu: float, sigma: float) -> Expression:
    """``exp(x)`` for a normally distributed ``x``."""
    return ["lognormal", [mu, sigma]]


def qlognormal(mu: float, sigma: float, q: float) -> Expression:
    """Numbers as of ``lognormal``, rounded to multiples of ``q``."""
    return ["qlognormal", [mu, sigma, q]]


_MADE: Mapping[str, Callable[..., Distribution]] = {
    "choice": lambda options: space.choice(*options),
    "randint": space.randint,
    "uniform": space.uniform,
    "quniform": space.quniform,
    "loguniform": lambda low, high: space.loguniform(exp(low), exp(high)),
    "qloguniform": lambda low, high, q: space.qloguniform(exp(low), exp(high), q),
    "normal": space.normal,
    "qnormal": space.qnormal,
    "lognormal": space.lognormal,
    "qlognormal": space.qlognormal,
}


def distribution(name: str, expression: Sequence[Any]) -> Distribution:
    """Return the distribution of Farandole's sweeps for an expression.

    ``name``: the hyperparameter. Raises HyperDriveConfigException for an invalid expression.
    """
    try:
        kind, arguments = expression
        return _MADE[kind](*arguments)
    except (SettingsError, TypeError, ValueError, KeyError) as error:
        raise HyperDriveConfigException(
            f"the hyperparameter {name!r} has an invalid distribution {expression!r}: {error}; use"
            f" one of {', '.join(_MADE)}"
        ) from error
