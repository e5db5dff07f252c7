"""A shuffled order that is computed, not stored: the element at any position is a function of
(seed, epoch).

A Feistel network permutes numbers of just enough bits, with a key per round from SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) and its finalizer as
the round function. A number that is not below the length goes through the network again until it is
(cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), which makes a
permutation of any length. Mitchell et al. ("Bandwidth-optimal random shuffling for GPUs", 2022)
shuffle in the same way and also use 24 rounds, so that short orders are well mixed, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

_ROUNDS = 24
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_U1, _U2 = np.uint64(_M1), np.uint64(_M2)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


class Permutation:
    """A permutation of ``length`` numbers: ``permutation(positions)`` returns the numbers at these
    positions. The result is the same on every machine.
    """

    def __init__(self, length: int, seed: int = 0, epoch: int = 0) -> None:
        self.length = length
        bits = max(1, (length - 1).bit_length())
        # a number is split into ``bits // 2`` low bits and the rest
        self._low = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        state = _mix(_mix(seed & _MASK) ^ (epoch & _MASK))
        self._keys = []
        for _ in range(_ROUNDS):
            state = (state + _GAMMA) & _MASK
            self._keys.append(np.uint64(_mix(state)))

    def __call__(self, positions: Array) -> Array:
        """Return the indices (int64) at ``positions``, whole numbers from 0 to ``length - 1``."""
        values = self._encrypt(positions.astype(np.uint64))
        wild = np.flatnonzero(values >= self.length)
        while wild.size:
            again = self._encrypt(values[wild])
            values[wild] = again
            wild = wild[again >= self.length]
        return values.astype(np.int64)

    def _encrypt(self, values: Array) -> Array:
        low, high = values & self._low_mask, values >> self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                low ^= _mix_array(high + key) & self._low_mask
            else:
                high ^= _mix_array(low + key) & self._high_mask
        result: Array = (high << self._low) | low
        return result


def _mix(value: int) -> int:
    """Apply the finalizer of SplitMix64."""
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: Array) -> Array:
    """Apply ``_mix`` to an array, which is overwritten."""
    values ^= values >> _S30
    values *= _U1
    values ^= values >> _S27
    values *= _U2
    values ^= values >> _S31
    return values
