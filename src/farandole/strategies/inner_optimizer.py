"""The optimizer inside a distributed optimizer, and the strategies and codecs that do not suit
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from farandole.base.contracts import Codec, Momentum, Strategy, Voting
from farandole.checks.catalogue import UNSUITED_OPTIMIZER
from farandole.checks.finding import Finding
from farandole.checks.reporting import warn_once
from farandole.job import context

_MAX_STEP = 0.1  # the longest acceptable step of a weight if only its direction is known
_MAX_OUTER_STEP = 1.5  # the longest outer step, in mean changes, that suits inner momentum
_LARGE_MOMENTUM = 0.5  # inner momentum that is large
_MAX_GROWTH = 2.0  # growth of the norm of weights in one outer step


class InnerOptimizer(NamedTuple):
    """The properties of one group of an optimizer's parameters that matter to codecs and
    strategies.

    - ``name``: The name of the class.
    - ``rate``: The learning rate; 0 if unknown.
    - ``momentum``: The factor of the velocity.
    - ``adaptive``: Whether steps are divided by the magnitude of past gradients, as in Adam.
    """

    name: str
    rate: float = 0.0
    momentum: Momentum = Momentum()
    adaptive: bool = False


Inner = Callable[[], Sequence[InnerOptimizer]]
_ADAPTIVE = ("Ada", "Rms", "RMS", "Nadam", "Ftrl", "Lamb", "FTML", "LAMB")


def of_named(optimizer: object, rate: object = 0.0) -> InnerOptimizer:
    """Return the properties of an optimizer of Keras, TensorFlow or MXNet, from its class and
    attributes. Values other than plain numbers, such as schedules, count as unknown.
    """
    names = [each.__name__ for each in type(optimizer).__mro__]
    value = _plain(optimizer, "momentum", "_momentum")
    nesterov = "NAG" in names or any(
        getattr(optimizer, name, False) is True for name in ("nesterov", "_use_nesterov")
    )
    velocity = {"SGD", "NAG", "MomentumOptimizer"} & {*names}
    return InnerOptimizer(
        type(optimizer).__name__,
        float(rate) if isinstance(rate, int | float) else 0.0,
        Momentum(value, nesterov) if velocity else Momentum(),
        any(name.startswith(_ADAPTIVE) or "Adam" in name for name in names),
    )


def _plain(optimizer: object, *names: str) -> float:
    """Return the first of these attributes that is a number from 0 to less than 1, or 0."""
    for name in names:
        # reading an attribute of a Keras 2 optimizer turns a number into a variable
        numbers = getattr(optimizer, "_hyper", {})
        found = numbers[name] if name in numbers else getattr(optimizer, name, None)
        if isinstance(found, int | float) and 0 <= found < 1:
            return float(found)
    return 0.0


def check_fit(
    label: str, inner: Sequence[InnerOptimizer], codec: Codec | None, strategy: Strategy | None
) -> None:
    """Warn, once for each codec or strategy, on rank 0, of an optimizer that does not suit it."""
    settings = context.settings()
    if context.rank() == 0 and settings.check != "off":
        for group in inner:
            for finding in unsuited(label, group, codec, strategy):
                warn_once(finding)


def check_growth(label: str, strategy: Strategy, before: float, after: float) -> None:
    """Warn, once for each strategy, of an outer step that has multiplied the norm of the weights.

    ``before``, ``after``: the norms of this rank's weights around the exchange.
    """
    if not before or after <= _MAX_GROWTH * before or context.settings().check == "off":
        return
    warn_once(
        UNSUITED_OPTIMIZER.finding(
            f"{label}: the outer step of strategy={strategy.spec!r} has multiplied the norm of the"
            f" weights by {after / before:.3g}, from {before:.3g} to {after:.3g}: it is too long."
            " Use a smaller lr, an outer momentum of 0.5, or an inner optimizer without momentum",
            where=f"growth {strategy.spec}",
        )
    )


def unsuited(
    label: str, inner: InnerOptimizer, codec: Codec | None, strategy: Strategy | None
) -> list[Finding]:
    """Return warnings for an optimizer with this codec or strategy."""
    texts = [
        text
        for text in (
            _votes_warning(inner, codec) if strategy is None else "",
            _delay_warning(inner, codec) if strategy is None else "",
            _outer_step_warning(inner, strategy),
        )
        if text
    ]
    where = getattr(strategy or codec, "spec", "")
    return [UNSUITED_OPTIMIZER.finding(f"{label}: {text}", where=where) for text in texts]


def _votes_warning(inner: InnerOptimizer, codec: Codec | None) -> str:
    value = inner.momentum.value
    length = inner.rate / (1 - value)
    if codec is None or inner.adaptive or length <= _MAX_STEP:
        return ""
    if not (isinstance(codec, Voting) and codec.votes):
        return ""
    return (
        f"codec={codec.spec!r} sends only -1, 0 or 1 for each element, so {inner.name} with rate"
        f" {inner.rate:g} and momentum {value:g} moves each weight by up to {length:g} in a step."
        " Use a rate as for Adam, 0.001, and momentum 0 (codec 'sign:0.9' has its own momentum)"
    )


def _delay_warning(inner: InnerOptimizer, codec: Codec | None) -> str:
    if codec is None or not inner.adaptive or not getattr(codec, "late", False):
        return ""
    return (
        f"codec={codec.spec!r} sends delayed or rounded values, and {inner.name} divides by their"
        " magnitude, which exceeds the gradients' magnitude, so it learns more slowly. Use SGD"
        " with momentum, or codec 'int8', 'powersgd:2' or 'threshold:0.01'"
    )


def _outer_step_warning(inner: InnerOptimizer, strategy: Strategy | None) -> str:
    reach, value = getattr(getattr(strategy, "reference", None), "reach", 0.0), inner.momentum.value
    if strategy is None or inner.adaptive or value < _LARGE_MOMENTUM or reach <= _MAX_OUTER_STEP:
        return ""
    return (
        f"strategy={strategy.spec!r} has an outer momentum that multiplies the change of each"
        f" exchange by up to {reach:g}, and the inner optimizer {inner.name} has momentum"
        f" {value:g}: weights may grow without bound. Remove the inner momentum, or use an outer"
        " momentum of 0.5 or less and a smaller lr, as in"
        f" '{strategy.spec.partition(',')[0]},lr=0.5,momentum=0.5'"
    )
