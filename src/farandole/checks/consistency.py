"""Verification that all ranks optimize the same parameters and exchange the same weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.differences import first_difference
from farandole.base.digests import digest_of_text
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.checks.catalogue import MODEL_MISMATCH
from farandole.checks.exchange import all_equal, gathered
from farandole.checks.finding import error_of
from farandole.core.api.objects import allgather_object
from farandole.core.engine import Engine, Entry
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array


def check_same_parameters(
    engine: Engine, name: str, identity: Sequence[tuple[Any, ...]], process_set: ProcessSet
) -> None:
    """Raise ValueError on all ranks, with the first difference, if parameters differ between ranks.
    Collective. ``identity``: for each parameter, the facts that must be equal.
    """
    digest = np.frombuffer(hashlib.sha256(repr(identity).encode()).digest(), dtype=np.int64)
    lowest, highest = extremes(engine, f"{name}.extremes", digest.copy(), digest.copy())
    if np.array_equal(lowest, highest):
        return
    tables = allgather_object(identity, f"{name}.tables", process_set)
    what = first_difference(tables, ("shape", "layout", "type"), process_set.ranks or ())
    found = MODEL_MISMATCH.finding(
        "all ranks must optimize the same parameters in the same order, but among the parameters"
        f" {what}. Build the same model on all ranks, and pass"
        " named_parameters=model.named_parameters() to see parameter names in this message",
        where=what,
    )
    raise error_of(ValueError, [found])


def extremes(engine: Engine, name: str, lows: Array, highs: Array) -> tuple[Array, Array]:
    """Return the elementwise minimum of all ranks' ``lows`` and maximum of their ``highs``, in
    place. Collective.
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


def describe_weights(weights: Sequence[Array], names: Sequence[str]) -> str:
    """Return name, shape and dtype of each weight, as JSON."""
    return json.dumps(
        [(row, weight.shape, weight.dtype.name) for row, weight in zip(names, weights, strict=True)]
    )


def check_same_weights(
    engine: Engine, name: str, ranks: Sequence[int], weights: Sequence[Array], names: Sequence[str]
) -> None:
    """Raise ValueError on all ranks if weights differ in name, shape or dtype. Collective.

    ``name``: the optimizer's name. ``ranks``: the job ranks of the engine's ranks. Joined ranks do
    not count.
    """
    description = describe_weights(weights, names)
    if all_equal(engine, f"{name}.model", [digest_of_text(description)])[0] is not False:
        return
    texts = gathered(engine, f"{name}.model", description.encode())
    present = [place for place, text in enumerate(texts) if text]
    tables = [json.loads(texts[place]) for place in present]
    difference = first_difference(tables, ("shape", "type"), [ranks[place] for place in present])
    found = MODEL_MISMATCH.finding(
        f"{label_of(name)}: all ranks must train the same model, but among its weights"
        f" {difference}. Build the same model on all ranks",
        where=difference,
    )
    raise error_of(ValueError, [found])


def label_of(name: str) -> str:
    """Return the label, for messages, of the optimizer whose exchanges have this name."""
    return name.partition(".weights.")[0]
