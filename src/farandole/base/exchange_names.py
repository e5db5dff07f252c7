"""Names under which distributed optimizers exchange.

Of a collective that only other ranks have asked for, a rank knows nothing but its name. So the name
says which optimizer asks, and this module alone makes and reads such names. Nothing else travels.
"""

from __future__ import annotations

from typing import NamedTuple

ADASUM = "adasum"  # steps of PyTorch's optimizers, combined
BUCKETS = "optimizer"  # gradients that come one by one
LISTS = "DistributedOptimizer"  # lists of gradients
KERAS_LISTS = "keras.DistributedOptimizer"

KINDS = (ADASUM, BUCKETS, LISTS, KERAS_LISTS)

_PREFIXES = tuple(f"{kind}." for kind in KINDS)


class Origin(NamedTuple):
    """The optimizer that asks for a collective. ``number``: among those of its process set."""

    kind: str
    number: int


def exchange_name(kind: str, number: int | str) -> str:
    """Return the name of what optimizer ``number`` exchanges."""
    return f"{kind}.{number}"


def origin_of(name: str) -> Origin | None:
    """Return the optimizer that reduces gradients, or combines steps, under this name; None for any
    other collective.
    """
    for kind in KINDS:
        if name.startswith(f"{kind}."):
            number = name[len(kind) + 1 :].partition(".")[0]
            return Origin(kind, int(number)) if number.isdecimal() else None
    return None


def is_of_optimizer(name: str) -> bool:
    """Return whether a distributed optimizer exchanges under this name, also its weights."""
    return name.startswith(_PREFIXES)
