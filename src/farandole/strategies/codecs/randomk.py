"""``randomk:r``: a random fraction r of the elements in each step. The others accumulate as
residuals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.strategies.codecs.base import narrowed, number, ring_bytes, unit_key, widened
from farandole.strategies.codecs.momentum import TOLERATED, ReplacedMomentum
from farandole.strategies.codecs.pushable import Pushable, check_length

if TYPE_CHECKING:
    from farandole.base.types import Array

_SEED = 0x4A4D
_COUNT = 8  # bytes before the values of a push: the number of the step


class RandomK(ReplacedMomentum, Pushable):
    """Random sparsification (Stich et al. 2018). All ranks draw the same indices, so only the
    values are sent, and an allreduce sums them.
    """

    name = "randomk"

    def __init__(self, ratio: str | float) -> None:
        super().__init__(str(ratio))
        self._ratio = number(self.name, ratio, float, "the fraction of elements to send", 0, 1)
        self.gamma = min(self.gamma, self._ratio / 2)

    def most_gain(self, value: float) -> float:
        """Return the largest factor that replaces a momentum of ``value``: less if elements wait
        longer (1 / ratio steps) than momentum lasts.
        """
        most: float = min(TOLERATED, self._ratio / (1 - value)) / (1 - value)
        return most

    def add_up(self, values: Array, parts: Sequence[Part], transport: Transport) -> Array:
        dtype = parts[0].buffer.dtype
        indices = self._indices(len(values), self._agreed_count(unit_key(parts), transport))
        _spoil(values)
        chosen = narrowed(values[indices], dtype)
        values[indices] -= widened(chosen, dtype)
        total = np.zeros_like(values)
        total[indices] = widened(self.sum_of(chosen, dtype, transport), dtype)
        return total

    def payload(self, values: Array, parts: Sequence[Part], rank: int) -> Array:
        key = unit_key(parts)
        count = self.kept("count", key, 1, np.int64)
        self.keep("count", key, count + 1)
        indices = self._indices(len(values), int(count[0]))
        _spoil(values)
        chosen = values[indices]
        values[indices] -= chosen
        return np.concatenate([count.view(np.uint8), chosen.view(np.uint8)])

    def unpack(self, payload: Array, out: Array) -> None:
        """See ``contracts.PushCodec``."""
        check_length(payload, _COUNT + math.ceil(self._ratio * len(out)) * out.itemsize)
        out[:] = 0
        out[self._indices(len(out), int(payload[:_COUNT].view(np.int64)[0]))] = payload[
            _COUNT:
        ].view(out.dtype)

    def _agreed_count(self, key: str, transport: Transport) -> int:
        """Return the highest step count of all ranks: a rank that had joined has missed some
        steps.
        """
        count = self.kept("count", key, 1, np.int64).copy()
        transport.allreduce([Buffer(count, count, DType.INT64)], ReduceOp.MAX)
        self.sent += ring_bytes(count.nbytes, transport)
        self.keep("count", key, count + 1)
        return int(count[0])

    def _indices(self, length: int, count: int) -> Array:
        """Return one index in each of equal intervals, drawn by the number of the step. The
        generator's raw output is the same in all versions of numpy.
        """
        chosen = math.ceil(self._ratio * length)
        bounds = np.arange(chosen + 1) * length // max(chosen, 1)
        drawn = np.random.PCG64(np.random.SeedSequence([_SEED, length, count])).random_raw(chosen)
        indices: Array = bounds[:-1] + (drawn % np.diff(bounds).astype(np.uint64)).astype(np.int64)
        return indices


def _spoil(values: Array) -> None:
    """Set all values to NaN if one is not finite: it would be hidden until its index is drawn."""
    if not np.isfinite(values.sum()) and not np.isfinite(values).all():
        values[:] = np.nan
