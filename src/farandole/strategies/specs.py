"""Strategies by name, as on the command line: ``local_sgd:8``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from farandole.base.contracts import Strategy
from farandole.errors import did_you_mean
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.core.gossip.quorum import Quorum

Made = TypeVar("Made")
ALLREDUCE, ADASUM = "allreduce", "adasum"  # exchange gradients


def strategy_of(given: str | Strategy) -> Strategy | str:
    """Return the Strategy that ``given`` names or is, or ALLREDUCE or ADASUM. Raises ValueError for
    other values.
    """
    if not isinstance(given, str):
        lacks = [
            name
            for name in ("spec", "epochs", "reference", "slots", "due", "exchange")
            if not hasattr(given, name)
        ]
        if lacks or isinstance(given, type):
            raise ValueError(
                f"strategy={given!r} is not a strategy. Use a name ({', '.join(known())}) or an"
                " object such as LocalSGD(every=8)."
                f" {'(It is a class: call it)' if isinstance(given, type) else _lacks(lacks)}"
            )
        return given
    name, colon, argument = given.partition(":")
    if colon and not argument:
        refuse(name, "strategy", given, f"{name!r}, or have an argument after the colon")
    if name in (ALLREDUCE, ADASUM):
        if argument:
            refuse(name, "strategy", given, f"{name}, without an argument")
        return name
    if name not in known():
        raise ValueError(
            f"there is no strategy {name!r} (known:"
            f" {', '.join(known())}){did_you_mean(name, known())}"
        )
    found: Strategy = registry.load("strategy", name).parse(argument)
    return found


def known() -> Sequence[str]:
    return [ALLREDUCE, ADASUM, *registry.names("strategy")]


def number(strategy: str, option: str, value: Any, *, at_least: int) -> int:
    """Return ``value`` (a number or text) as an int. Raises ValueError unless it is whole and large
    enough.
    """
    try:
        found = int(value)
    except (TypeError, ValueError):
        refuse(strategy, option, value, f"a whole number, at least {at_least}")
    if found != float(value) or found < at_least or isinstance(value, bool):
        refuse(strategy, option, value, f"a whole number, at least {at_least}")
    return found


def real(strategy: str, option: str, value: Any, fits: Callable[[float], bool], rule: str) -> float:
    """Return ``value`` (a number or text) as a float. Raises ValueError unless it is a number that
    ``fits``.
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        refuse(strategy, option, value, rule)
    return found if fits(found) else refuse(strategy, option, value, rule)


def fraction(strategy: str, option: str, value: Any) -> float | None:
    """Return ``value`` as a number above 0 and up to 1, or None."""
    return (
        None
        if value is None
        else real(strategy, option, value, lambda it: 0 < it <= 1, "more than 0 and at most 1")
    )


def gamma_suffix(gamma: float | None) -> str:
    """Return the part of a strategy's spec that gives ``gamma``."""
    return "" if gamma is None else f",gamma={gamma:g}"


def quorum_of(
    strategy: str, quorum: float | str | None, grace: float | str | None
) -> Quorum | None:
    """Return the rule of averages that do not wait for all ranks; None without a ``quorum``.

    ``quorum``: a fraction of the ranks below 1, or a number of ranks. ``grace``: seconds; None: 1.
    """
    if quorum is None:
        if grace is not None:
            refuse(strategy, "grace", grace, "given together with quorum, as in quorum=0.5")
        return None
    from farandole.core.gossip.quorum import Quorum

    rule = "a share of the ranks, more than 0 and less than 1, or a whole number of ranks"
    return Quorum(
        real(
            strategy, "quorum", quorum, lambda it: 0 < it < 1 or (it >= 1 and it == it // 1), rule
        ),
        real(
            strategy,
            "grace",
            1.0 if grace is None else grace,
            lambda it: 0 <= it < inf,
            "a number of seconds, at least 0",
        ),
    )


def quorum_suffix(rule: Quorum | None) -> str:
    """Return the part of a strategy's spec that gives its quorum."""
    return "" if rule is None else f",quorum={rule.quorum:g},grace={rule.grace:g}"


def boolean(strategy: str, option: str, value: bool | str) -> bool:
    if str(value).lower() not in ("0", "1", "false", "true"):
        refuse(strategy, option, value, "0 or 1")
    return str(value).lower() in ("1", "true")


def parsed(kind: type[Made], argument: str, example: str) -> Made:
    """Return a ``kind`` created from the argument after its name and colon: the first value, then
    others by keyword. Raises ValueError for an argument that ``kind`` does not accept.
    """
    name = str(getattr(kind, "name", kind.__name__))
    words = [word.partition("=") for word in argument.split(",") if word]
    first = [word for word, equals, _ in words if not equals]
    rule = f"a first argument followed by named ones, as in {name}:{example}"
    if len(first) > 1 or (first and words[0][1]):
        refuse(name, "strategy", f"{name}:{argument}", rule)
    named = {word: value for word, equals, value in words if equals}
    takes = inspect.signature(kind).parameters
    for word in named:
        if word not in takes and not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            rule = f"removed: {name} takes {', '.join(takes)}{did_you_mean(word, [*takes])}"
            refuse(name, word, named[word], rule)
    try:
        return kind(*first, **named)
    except TypeError:
        refuse(name, "strategy", f"{name}:{argument}", rule)


def refuse(strategy: str, option: str, value: Any, rule: str) -> NoReturn:
    raise ValueError(f"{strategy}: {option}={value!r} must be {rule}")


def _lacks(names: Sequence[str]) -> str:
    return f"(It has no {', '.join(names)})"
