"""Comparison of the extra state of modules (``get_extra_state``), which is not a tensor that a
broadcast could overwrite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from farandole.base.digests import digest_of_bytes
from farandole.base.pickled import dumps
from farandole.checks.held_state import HeldState, different_state
from farandole.checks.reporting import report
from farandole.core.api.objects import allgather_object
from farandole.job import context
from farandole.job.context import ProcessSet

_CURE = (
    "Build the modules with the same data on all ranks, or send the state of rank {root}:"
    " model.load_state_dict(hvd.broadcast_object(model.state_dict(), root_rank={root}))"
)


def compare(extra: Sequence[tuple[str, Any]], root_rank: int, process_set: ProcessSet) -> None:
    """Report modules whose extra state differs between ranks. Collective.

    ``extra``: name and value of each entry, the same names on all ranks. Raises RanksDifferError
    with ``--check raise``.
    """
    mine = [_digest(value) for _, value in extra]
    digests = allgather_object(mine, process_set=process_set)
    odd = [
        place
        for place, column in enumerate(zip(*digests, strict=True))
        if 0 not in column and len({*column}) > 1
    ]
    if not odd:
        return
    values = allgather_object([extra[place][1] for place in odd], process_set=process_set)
    ranks = process_set.ranks or range(len(values))
    root = list(ranks).index(root_rank)
    found = []
    for place, column in zip(odd, zip(*values, strict=True), strict=True):
        owner = f"module {extra[place][0].removesuffix('_extra_state').rstrip('.')!r}"
        states = [
            HeldState(owner, "extra state", int(not equal(value, column[root]))) for value in column
        ]
        found.append(different_state(states, root, ranks, _CURE.format(root=root_rank)))
    report(context.engine(process_set), [one for one in found if one is not None])


def _digest(value: Any) -> int:
    """Return a digest, or 0 for an object that cannot be pickled and therefore not compared."""
    try:
        return digest_of_bytes(dumps(value))
    except Exception:
        return 0


def equal(one: Any, other: Any) -> bool:
    """Return whether two objects have equal content: containers and attributes are compared, and
    NaN equals itself.
    """
    kinds = [(type(each).__module__, type(each).__name__) for each in (one, other)]
    if kinds[0] != kinds[1]:  # a class of the main program becomes another object when it is sent
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and equal(_array(one), _array(other))
    if isinstance(one, np.ndarray):
        if one.dtype.hasobject:
            return one.shape == other.shape and equal(one.tolist(), other.tolist())
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind in "fc"
        )
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    plain = not any("__eq__" in vars(base) for base in type(one).__mro__[:-1])
    if plain and hasattr(one, "__dict__"):
        return equal(vars(one), vars(other))
    return bool(one == other) or (one != one and other != other)


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().to_dense().double().numpy()
