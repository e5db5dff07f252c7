"""``sign``: every rank votes for the direction of each number, and the majority's is what all get: -1, 0 or 1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from farandole.contracts import Part, Transport
from farandole.strategies.codecs.quantized import Quantized

if TYPE_CHECKING:
    from farandole.types import Array

_VOTES = 5  # in a byte, as digits to the base of 3
_SPOILT = 255  # a byte in which some number is not finite


def _table() -> Array:
    """For each byte, its votes."""
    table = np.full((256, _VOTES), np.nan, np.float32)
    table[: 3**_VOTES] = list(product((-1, 0, 1), repeat=_VOTES))
    return table


_TABLE = _table()


class Sign(Quantized):
    """Bernstein et al. 2018: signSGD with majority vote. A number that is 0 has no vote, and a tie is 0.

    Its average is the vote itself, so the learning rate is the length of a step; nothing is kept.
    """

    name, feedback, block = "sign", False, _VOTES

    def __init__(self) -> None:
        super().__init__()

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
        votes = super().add_up(values, parts, transport)
        votes *= transport.size
        return votes
