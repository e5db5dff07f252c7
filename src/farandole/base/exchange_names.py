"""Names of the collectives of distributed optimizers.

A rank knows only the name of a collective that other ranks have requested. The name therefore
identifies the optimizer, and only this module builds and parses such names.
"""

from __future__ import annotations

from typing import NamedTuple

ADASUM = "adasum"  # combined steps of PyTorch optimizers
BUCKETS = "optimizer"  # gradients that arrive one by one
LISTS = "DistributedOptimizer"  # lists of gradients
KERAS_LISTS = "keras.DistributedOptimizer"

KINDS = (ADASUM, BUCKETS, LISTS, KERAS_LISTS)

_PREFIXES = tuple(f"{kind}." for kind in KINDS)


class Origin(NamedTuple):
    """The optimizer that requests a collective, and its ``number`` within its process set."""

    kind: str
    number: int


def exchange_name(kind: str, number: int | str) -> str:
    """Return the name of the collectives of optimizer ``number``."""
    return f"{kind}.{number}"


def origin_of(name: str) -> Origin | None:
    """Return the optimizer that reduces gradients or combines steps under this name; None for any
    other collective.
    """
    for kind in KINDS:
        if name.startswith(f"{kind}."):
            number = name[len(kind) + 1 :].partition(".")[0]
            return Origin(kind, int(number)) if number.isdecimal() else None
    return None


def is_of_optimizer(name: str) -> bool:
    """Return whether a distributed optimizer exchanges gradients, steps or weights under this
    name.
    """
    return name.startswith(_PREFIXES)
