"""Do all ranks optimize the same parameters?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.differences import first_difference
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.api.objects import allgather_object
from farandole.core.engine import Engine, Entry
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array


def check_alike(
    engine: Engine, name: str, identity: Sequence[tuple[Any, ...]], process_set: ProcessSet
) -> None:
    """Raise ValueError on all ranks, with the first difference, if one has other parameters.
    Collective. ``identity``: of each, what must be the same.
    """
    digest = np.frombuffer(hashlib.sha256(repr(identity).encode()).digest(), dtype=np.int64)
    lowest, highest = extremes(engine, f"{name}.alike", digest.copy(), digest.copy())
    if np.array_equal(lowest, highest):
        return
    tables = allgather_object(identity, f"{name}.tables", process_set)
    what = first_difference(tables, ("shape", "layout", "type"), process_set.ranks or ())
    raise ValueError(
        f"all ranks must optimize the same parameters in the same order, but of parameters {what}."
        " Build the same model on all ranks, and give named_parameters=model.named_parameters() to"
        " have their names here"
    )


def extremes(engine: Engine, name: str, lows: Array, highs: Array) -> tuple[Array, Array]:
    """Element by element, the smallest of all ranks' ``lows`` and the largest of their ``highs``,
    which are overwritten with them. Collective.
    """
    entries = [
        Entry(
            Request(f"{name}.{op.name}", Kind.ALLREDUCE, DType.INT64, array.shape, op),
            Buffer(array, array, DType.INT64),
        )
        for op, array in ((ReduceOp.MIN, lows), (ReduceOp.MAX, highs))
    ]
    engine.run(entries)
    return lows, highs
