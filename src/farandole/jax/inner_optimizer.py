"""The facts about an optax optimizer that codecs and strategies depend on.

An optimizer of optax is a pair of functions. Its options exist only in their closures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from farandole.base.contracts import Momentum
from farandole.strategies.inner_optimizer import InnerOptimizer

_DEPTH = 12  # of closures in closures
_ADAPTIVE = ("scale_by_ada", "scale_by_rms", "scale_by_rss", "scale_by_stddev", "scale_by_amsgrad")


def facts_of(optimizer: Any) -> InnerOptimizer:
    """Return the facts about an optimizer. Momentum counts if one velocity holds the gradients;
    numbers that are injected or scheduled are unknown.
    """
    steps = list(_closures(optimizer.update, _DEPTH))
    names = [name for name, _ in steps]
    velocities = [held for name, held in steps if name == "trace" and "decay" in held]
    rates = [held["step_size"] for name, held in steps if name == "scale" and "step_size" in held]
    adaptive = any(name.startswith(_ADAPTIVE) for name in names)
    momentum = Momentum()
    if len(velocities) == 1 and not adaptive and isinstance(velocities[0]["decay"], float | int):
        momentum = Momentum(float(velocities[0]["decay"]), bool(velocities[0]["nesterov"]))
    rate = rates[0] if len(rates) == 1 and isinstance(rates[0], float | int) else 0.0
    return InnerOptimizer("optax's optimizer", abs(float(rate)), momentum, adaptive)


def _closures(update: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name of each transformation that ``update`` consists of, with its options."""
    code, cells = getattr(update, "__code__", None), getattr(update, "__closure__", None) or ()
    if code is None or not depth:
        return
    held = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # it is empty
            continue
    yield update.__qualname__.partition(".")[0], held
    for value in held.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            inner: Callable[..., Any] | None = getattr(each, "update", each)
            if not isinstance(each, dict) and callable(inner):
                yield from _closures(inner, depth - 1)
