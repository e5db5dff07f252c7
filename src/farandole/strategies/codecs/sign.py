"""``sign``: every rank votes on the direction of each element, and all ranks receive the
majority's: -1, 0 or 1. ``sign:0.9``: ranks vote by their momentum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.errors import SettingsError
from farandole.strategies.codecs.base import cleared, pieces
from farandole.strategies.codecs.quantized import Quantized

if TYPE_CHECKING:
    from farandole.base.types import Array

_VOTES = 5  # in a byte, as base-3 digits
_SPOILT = 255  # a byte with a value that is not finite


def _table() -> Array:
    """Return the votes in each byte value."""
    table = np.full((256, _VOTES), np.nan, np.float32)
    table[: 3**_VOTES] = list(product((-1, 0, 1), repeat=_VOTES))
    return table


_TABLE = _table()


class Sign(Quantized):
    """SignSGD with majority vote (Bernstein et al. 2018). A 0 does not vote, and a tie gives 0.

    An average is the vote itself, so the learning rate is the step size. With ``momentum`` (SIGNUM
    in the paper), a rank votes by the running mean of its gradients, ``momentum/<key>`` in the
    state. Without momentum, the codec has no state.
    """

    name, feedback, block = "sign", False, _VOTES
    votes = True  # results are directions without magnitude

    def __init__(self, momentum: str | float = 0.0) -> None:
        """Raises SettingsError for a ``momentum`` outside [0, 1)."""
        self._momentum = _momentum(momentum)
        super().__init__(str(momentum) if self._momentum else "")

    @property
    def keeps(self) -> bool:
        return self._momentum > 0

    def nbytes(self, count: int) -> int:
        return -(-count // _VOTES)

    def encode(self, values: Array, generator: np.random.Generator | None) -> Array:
        votes = np.ones(self.nbytes(len(values)) * _VOTES, np.uint8)
        np.add(values > 0, values >= 0, out=votes[: len(values)], dtype=np.uint8)
        payload = np.zeros(len(votes) // _VOTES, np.uint8)
        for place in range(_VOTES):
            payload *= np.uint8(3)
            payload += votes[place::_VOTES]
        if not np.isfinite(values.sum()):
            payload[np.flatnonzero(~np.isfinite(values)) // _VOTES] = _SPOILT
        return payload

    def decode(self, payload: Array, out: Array) -> None:
        out[:] = np.take(_TABLE, payload, axis=0).reshape(-1)[: len(out)]

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        if self._momentum:
            self._add_to_momentum(values, parts)
        votes = super().add_up(values, parts, transport)
        votes *= transport.size
        if self._momentum:
            cleared(values)
            for part, place in pieces(values, parts):
                self.keep("momentum", part.key, place)
        return votes

    def _add_to_momentum(self, values: Array, parts: Sequence[Part]) -> None:
        """Turn ``values`` into the momentum. A tensor missing on this rank counts as zeros;
        ``retract`` restores the momentum of a tensor missing on all ranks.
        """
        values *= values.dtype.type(1 - self._momentum)
        for part, place in pieces(values, parts):
            old = self.kept("momentum", part.key, len(place), place.dtype)
            if not part.given:
                self.remember_for_retract(part, f"momentum/{part.key}", 0, old)
            place += old * place.dtype.type(self._momentum)
        # Rounding keeps subnormal numbers from decaying to 0: they would vote forever.
        values[np.abs(values) < np.finfo(values.dtype).tiny] = 0


def _momentum(given: str | float) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if 0 <= value < 1:
        return value
    raise SettingsError(
        f"codec={f'sign:{given}'!r} is invalid: the argument must be the momentum of each rank's"
        " gradients, at least 0 and less than 1"
    )
