"""Checks of one optimizer's steps, from facts that its framework supplies."""

from __future__ import annotations

from collections.abc import Callable

from farandole.checks.catalogue import BYPASSED_STEP, NO_GRADIENTS, NONFINITE_STEP
from farandole.checks.finding import Finding

IDLE_STEPS = 10  # without any gradient: more than a program takes to advance its scheduler
BYPASSED_STEPS = 10  # of other optimizers, without a step of its own


class NonFiniteCheck:
    """Detects the first step that makes weights NaN or infinite, on the rank whose gradient caused
    it: the reduction spreads the NaN to all ranks.

    ``is_finite``: returns whether a parameter's weights are finite. ``name_of``: returns a
    parameter's name. Both take its index.
    """

    def __init__(self, is_finite: Callable[[int], bool], name_of: Callable[[int], str]) -> None:
        self._is_finite = is_finite
        self._name_of = name_of
        # parameter with finite weights and a gradient that is not finite
        self._suspect: int | None = None

    def before_step(self, nonfinite: int | None) -> None:
        """Record a parameter whose gradient is NaN or infinite on this rank, or None."""
        finite = nonfinite is not None and self._is_finite(nonfinite)
        self._suspect = nonfinite if finite else None

    def after_step(self, step: int) -> Finding | None:
        index, self._suspect = self._suspect, None
        if index is None or self._is_finite(index):  # the program has skipped the step, or clipped
            return None
        name = self._name_of(index)
        return NONFINITE_STEP.finding(
            f"this rank computed a gradient of {name!r} with NaN or infinite numbers in step"
            f" {step}, which made finite weights NaN or infinite on all ranks. Inspect the rows"
            " and the loss of this rank in that step (torch.autograd.set_detect_anomaly(True)"
            " names the operation). If all ranks report this, the learning rate may be too high",
            where=name,
        )


class NoGradientsCheck:
    """Detects an optimizer whose parameters never receive a gradient, because their model is no
    longer trained.
    """

    def __init__(self) -> None:
        self.active = True  # until the first gradient
        self._steps = 0

    def on_gradient(self) -> None:
        """Record that a parameter has a gradient."""
        self.active = False

    def after_step(self, kind: str, trainable: int) -> Finding | None:
        """Return the finding after ``IDLE_STEPS`` steps without a gradient. ``kind``: the
        optimizer's class. ``trainable``: the number of parameters that may receive a gradient.
        """
        if not self.active:
            return None
        self._steps += 1
        if self._steps != IDLE_STEPS or not trainable:
            return None
        return NO_GRADIENTS.finding(
            f"{kind} has taken {IDLE_STEPS} steps, but none of its {trainable} parameters ever had"
            " a gradient on any rank, so it trains nothing. Create and wrap the optimizer of the"
            " model that computes the loss, after the model is created, copied or loaded with"
            " assign=True. Call zero_grad() before backward(), not between backward() and step()"
        )


class BypassedStepCheck:
    """Detects steps that bypass a distributed optimizer whose ranks exchange in ``step()`` only
    (strategies that exchange weights, Adasum).

    A program bypasses it by stepping with the wrapped optimizer or with one inside it: SAM's
    ``second_step`` calls the step of its base. Then the ranks silently exchange nothing.
    ``exchange``: the name of the exchange.
    """

    def __init__(self, exchange: str) -> None:
        self._exchange = exchange
        self._others = 0
        self.active = True

    def on_own_step(self) -> None:
        """Record that the program calls ``step()`` of the distributed optimizer."""
        self.active = False

    def on_other_step(self, kind: str, other: str) -> Finding | None:
        """Count a step of an optimizer of class ``other`` with parameters of the distributed one,
        whose class is ``kind``. Return the finding after ``BYPASSED_STEPS`` steps.
        """
        self._others += 1
        if self._others != BYPASSED_STEPS:
            return None
        return BYPASSED_STEP.finding(
            f"{other} has taken {BYPASSED_STEPS} steps with the parameters of the distributed"
            f" {kind}, whose step() was never called, so each rank trains alone: {self._exchange}"
            " exchanges in that step() only. Call step() of the optimizer that"
            f" DistributedOptimizer returned. If {kind} contains an optimizer that does the step"
            f" (SAM's second_step), wrap that one: DistributedOptimizer({other}(...)). If ranks"
            " are meant to train separately: --check off"
        )
