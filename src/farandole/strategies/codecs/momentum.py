"""Codecs that apply the optimizer's momentum themselves.

An optimizer with momentum amplifies delayed or rounded values: ten times at 0.9. Such a codec
decides where momentum acts, and gives the optimizer gradients whose velocity is the desired step. A
velocity is linear in the gradients, so frameworks need no change: with the gradient ``step - value
* velocity``, the optimizer's new velocity is ``step``. Weight decay and the program's own changes
of gradients keep the optimizer's momentum. See decision 056.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import Momentum, Part, Transport
from farandole.core.kernels import widen
from farandole.strategies.codecs.base import FlatCodec, cleared, pieces, write

if TYPE_CHECKING:
    from farandole.base.types import Array


# The fraction of an optimizer's rate that delayed and rounded values tolerate; see decision 056.
TOLERATED = 0.5


class ReplacedMomentum(FlatCodec):
    """A codec that replaces momentum by half of the equivalent rate, ``1 / (1 - value)``.

    This is factor masking (Lin et al. 2018, "Deep Gradient Compression") for codecs that send each
    element in each step. ``applied/<key>`` in the state is the optimizer's velocity, the same on
    all ranks; ``ramp/<key>`` is the number of its steps. ``late``: an optimizer that divides by the
    magnitude of past gradients, as Adam does, learns more slowly.
    """

    late = True

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        self._momenta: dict[str, Momentum] = {}

    def follow(self, momenta: Mapping[str, Momentum]) -> None:
        """See ``contracts.MomentumAware``."""
        for key, momentum in momenta.items():
            if momentum.value or key in self._momenta:
                self._momenta[key] = momentum

    def most_gain(self, value: float) -> float:
        """Return the largest factor that replaces a momentum of ``value``."""
        return TOLERATED / (1 - value)

    def gain(self, value: float, steps: int) -> float:
        """Return the factor that replaces a momentum of ``value`` after ``steps`` steps. It grows
        like the optimizer's velocity.
        """
        return min((1 - value ** (steps + 1)) / (1 - value), self.most_gain(value))

    def deliver(self, total: Array, parts: Sequence[Part], scale: float) -> None:
        momenta = [self._momenta.get(part.key) for part in parts]
        if not any(momenta):
            super().deliver(total, parts, scale)
            return
        total *= total.dtype.type(scale)
        for (part, place), momentum in zip(pieces(total, parts), momenta, strict=True):
            if momentum is not None and np.isfinite(place.sum()):
                self._compensate(place, part, momentum)
        write(total, parts, 1.0)

    def _compensate(self, step: Array, part: Part, momentum: Momentum) -> None:
        """Turn ``step`` into the gradient that makes the optimizer take this step."""
        kind = step.dtype.type
        velocity = self.kept("applied", part.key, len(step), step.dtype)
        steps = self.kept("ramp", part.key, 1, np.int64)
        step *= kind(self.gain(momentum.value, int(steps[0])))
        value = kind(momentum.value)
        if momentum.nesterov:
            step -= value * value * velocity
            step /= 1 + value
            new = value * velocity + step
        else:
            new = step.copy()
            step -= value * velocity
        if not part.given:
            self.remember_for_retract(part, f"applied/{part.key}", 0, velocity)
            self.remember_for_retract(part, f"ramp/{part.key}", 0, steps)
        self.keep("applied", part.key, new)
        self.keep("ramp", part.key, steps + 1)


class MaskedMomentum(ReplacedMomentum):
    """A codec with momentum correction and factor masking (Lin et al. 2018).

    The residual of an element grows by its velocity on this rank, ``velocity/<key>`` in the state.
    Sending an element resets its velocity to 0.
    """

    def most_gain(self, value: float) -> float:
        return 1.0

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        if not any(part.key in self._momenta for part in parts):
            return super().add_up(values, parts, transport)
        velocities = {
            part.key: self._add_velocity(place, part, self._momenta[part.key])
            for part, place in pieces(values, parts)
            if part.key in self._momenta
        }
        before = values.copy()
        total = super().add_up(values, parts, transport)
        sent = before != values
        for part, mask in pieces(sent, parts):
            if part.key in velocities:
                velocities[part.key][mask] = 0
                cleared(velocities[part.key])
                self.keep("velocity", part.key, velocities[part.key])
        return total

    def _add_velocity(self, values: Array, part: Part, momentum: Momentum) -> Array:
        """Add the momentum of this step to ``values``, which include the gradient. Return the new
        velocity.
        """
        value = values.dtype.type(momentum.value)
        old = self.kept("velocity", part.key, len(values), values.dtype)
        if not part.given:
            self.remember_for_retract(part, f"velocity/{part.key}", 0, old)
        dtype = part.buffer.dtype
        gradient = widen(part.buffer.data, dtype) if dtype.is_half else part.buffer.data
        velocity: Array = value * old + gradient
        values += value * (velocity if momentum.nesterov else old)
        return velocity
