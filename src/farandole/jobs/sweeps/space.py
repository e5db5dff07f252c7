"""Distributions of a sweep's parameters, and searches over them.

All functions are pure: a search with the same seed gives the same values in the same order, so a
restarted controller continues the sweep at the same point.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from farandole.errors import SettingsError, did_you_mean

Values = dict[str, Any]


class Distribution(NamedTuple):
    """The distribution of a parameter: its ``kind`` and its arguments."""

    kind: str
    arguments: tuple[Any, ...]

    def sample(self, draw: random.Random) -> Any:
        """Return one random value."""
        return _SAMPLERS[self.kind](draw, *self.arguments)

    def choices(self) -> tuple[Any, ...] | None:
        """Return all values if their number is finite, otherwise None."""
        if self.kind == "choice":
            return self.arguments
        return tuple(range(self.arguments[0])) if self.kind == "randint" else None


def choice(*options: Any) -> Distribution:
    """One of the options, or one element of a single list."""
    if len(options) == 1 and isinstance(options[0], Sequence) and not isinstance(options[0], str):
        options = tuple(options[0])
    return _checked("choice", *options)


def randint(upper: int) -> Distribution:
    """Whole numbers from 0 to ``upper`` - 1."""
    return _checked("randint", upper)


def uniform(low: float, high: float) -> Distribution:
    """Numbers between ``low`` and ``high``, all equally likely."""
    return _checked("uniform", low, high)


def quniform(low: float, high: float, step: float) -> Distribution:
    """Numbers between ``low`` and ``high``, rounded to multiples of ``step``."""
    return _checked("quniform", low, high, step)


def loguniform(low: float, high: float) -> Distribution:
    """Positive numbers between ``low`` and ``high`` whose logarithms are equally likely."""
    return _checked("loguniform", low, high)


def qloguniform(low: float, high: float, step: float) -> Distribution:
    """``loguniform``, rounded to multiples of ``step``."""
    return _checked("qloguniform", low, high, step)


def normal(mean: float, deviation: float) -> Distribution:
    """A normal distribution."""
    return _checked("normal", mean, deviation)


def qnormal(mean: float, deviation: float, step: float) -> Distribution:
    """A normal distribution, rounded to multiples of ``step``."""
    return _checked("qnormal", mean, deviation, step)


def lognormal(mean: float, deviation: float) -> Distribution:
    """A distribution of numbers with normally distributed logarithms."""
    return _checked("lognormal", mean, deviation)


def qlognormal(mean: float, deviation: float, step: float) -> Distribution:
    """``lognormal``, rounded to multiples of ``step``."""
    return _checked("qlognormal", mean, deviation, step)


def _loguniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _lognormal(draw: random.Random, mean: float, deviation: float) -> float:
    return math.exp(draw.gauss(mean, deviation))


def _rounded(sample: Callable[..., float]) -> Callable[..., float]:
    """Return a sampler whose last argument is the step of its values."""
    return lambda draw, *given: round(sample(draw, *given[:-1]) / given[-1]) * given[-1]


_SAMPLERS: dict[str, Callable[..., Any]] = {
    "choice": lambda draw, *options: draw.choice(options),
    "randint": lambda draw, upper: draw.randrange(upper),
    "uniform": random.Random.uniform,
    "quniform": _rounded(random.Random.uniform),
    "loguniform": _loguniform,
    "qloguniform": _rounded(_loguniform),
    "normal": random.Random.gauss,
    "qnormal": _rounded(random.Random.gauss),
    "lognormal": _lognormal,
    "qlognormal": _rounded(_lognormal),
}
_COUNTS = {
    "randint": 1,
    "uniform": 2,
    "quniform": 3,
    "loguniform": 2,
    "qloguniform": 3,
    "normal": 2,
    "qnormal": 3,
    "lognormal": 2,
    "qlognormal": 3,
}


def _checked(kind: str, *arguments: Any) -> Distribution:
    """Return the distribution. Raises SettingsError for invalid arguments."""
    shown = f"{kind}({', '.join(map(str, arguments))})"
    if kind == "choice":
        if not arguments:
            raise SettingsError("choice() needs at least one option")
        return Distribution(kind, arguments)
    count = _COUNTS[kind]
    numbers = all(isinstance(each, (int, float)) for each in arguments)
    if len(arguments) != count or not numbers:
        raise SettingsError(f"{shown}: {kind} takes {count} numbers")
    if kind == "randint" and not (isinstance(arguments[0], int) and arguments[0] > 0):
        raise SettingsError(f"{shown}: the upper end must be a whole number of at least 1")
    if kind.endswith("uniform") and not arguments[0] < arguments[1]:
        raise SettingsError(f"{shown}: the lower end must be below the upper end")
    if kind.endswith("loguniform") and arguments[0] <= 0:
        raise SettingsError(f"{shown}: the lower end must be positive")
    if kind.startswith("q") and arguments[2] <= 0:
        raise SettingsError(f"{shown}: the step must be positive")
    return Distribution(kind, arguments)


def parse_distribution(text: str) -> Distribution:
    """Return the distribution for a text such as ``loguniform(1e-4,0.1)`` or ``16,32,64``.

    Raises SettingsError for other texts.
    """
    call = re.fullmatch(r"([a-z]+)\((.*)\)", text.strip())
    if call is None:
        return choice(*(_number(word) for word in text.split(",")))
    kind = call[1]
    if kind not in _SAMPLERS:
        near = did_you_mean(kind, _SAMPLERS)
        raise SettingsError(f"{kind!r} is not a distribution ({', '.join(_SAMPLERS)}){near}")
    return _checked(kind, *(_number(word) for word in call[2].split(",") if word.strip()))


def _number(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word.strip()


def grid(space: Mapping[str, Distribution]) -> Iterator[Values]:
    """Yield all combinations. Raises SettingsError for a parameter with infinitely many values."""
    columns = []
    for name, distribution in space.items():
        choices = distribution.choices()
        if choices is None:
            raise SettingsError(
                f"a grid needs a list of values for {name!r}, not {distribution.kind}; give"
                f" {name}=1,2,3, or search at random"
            )
        columns.append(choices)
    for values in itertools.product(*columns):
        yield dict(zip(space, values, strict=True))


def random_search(space: Mapping[str, Distribution], seed: int) -> Iterator[Values]:
    """Yield random combinations endlessly."""
    draw = random.Random(seed)
    while True:
        yield {name: distribution.sample(draw) for name, distribution in space.items()}


def space_from_json(data: Mapping[str, Any]) -> dict[str, Distribution]:
    return {name: Distribution(kind, tuple(args)) for name, (kind, args) in data.items()}
