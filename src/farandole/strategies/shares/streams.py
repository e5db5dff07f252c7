"""Random streams by step and share, independent of the rank that uses them."""

from __future__ import annotations

import random
import sys

import numpy as np

_MASK = (1 << 64) - 1


def stream(*numbers: int) -> int:
    """Return a seed of 64 bits that depends on all ``numbers`` and their order.

    The numbers are mixed as in SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom
    Number Generators", OOPSLA 2014.
    """
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy and, if it is loaded, PyTorch (on all devices).

    ``seed``: 64 bits.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
