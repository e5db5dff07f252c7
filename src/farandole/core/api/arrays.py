"""Broadcasts of lists of arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.differences import Row, first_difference, names_of_one
from farandole.base.digests import digest
from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.api.objects import allgather_object, broadcast_object
from farandole.core.api.ops import WORLD, place_of
from farandole.core.engine import Entry
from farandole.job import context
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array


_SAME = "all ranks must have the same variables in the same order"


def broadcast_arrays(
    arrays: Sequence[Array],
    names: Sequence[str],
    root_rank: int = 0,
    process_set: ProcessSet = WORLD,
    owners: Sequence[Any] = (),
    read: Callable[[Any], Array] = np.asarray,
) -> list[Array]:
    """Return ``root_rank``'s arrays on every rank, sent in one piece.

    ``arrays``: any types and layouts; the same list on all ranks. Arrays of objects (strings) are
    pickled and sent separately. ``owners``: the variables that will hold the results, if ``read``
    can read them at the end of the job. Raises ValueError on all ranks, with the first difference,
    if shapes or types differ.
    """
    engine = context.engine(process_set)
    root = place_of(root_rank, process_set)
    if engine.size == 1 and root == 0:
        return list(arrays)
    table = [(array.shape, array.dtype.name) for array in arrays]
    _check(allgather_object(table, process_set=process_set), names, process_set)
    numbers = [array for array in arrays if not array.dtype.hasobject]
    parts = [
        np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in numbers if array.size
    ]
    flat = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)
    request = Request("broadcast.arrays", Kind.BROADCAST, DType.UINT8, flat.shape, root=root)
    engine.run([Entry(request, Buffer(flat, flat, DType.UINT8), engine.numbers.next())])
    results = _unpacked(arrays, flat, root_rank, process_set)
    unchanged = _unchanged(owners, results, read) if owners and context.rank() == 0 else None
    context.add_parameters_broadcast(sum(array.size for array in numbers), unchanged)
    return results


def check_same_variables(
    rows: Sequence[Row], columns: Sequence[str] = (), process_set: ProcessSet = WORLD
) -> None:
    """Raise ValueError on all ranks if their variables differ.

    Otherwise collectives by name would wait forever, and collectives by position would mix up
    variables. ``rows``: for each variable its name and the properties that must be the same;
    ``columns``: the names of these properties.
    """
    if context.engine(process_set).size > 1:
        tables = allgather_object([*rows], process_set=process_set)
        difference = first_difference(tables, columns, process_set.ranks or ())
        if difference:
            raise ValueError(f"broadcast: {_SAME}, but {difference}")


def _unpacked(
    arrays: Sequence[Array], flat: Array, root_rank: int, process_set: ProcessSet
) -> list[Array]:
    """Cut ``flat`` into arrays like ``arrays``. Arrays of objects are broadcast here."""
    objects = [array for array in arrays if array.dtype.hasobject]
    received = iter(
        broadcast_object(objects, root_rank, process_set=process_set) if objects else ()
    )
    results, begin = [], 0
    for array in arrays:
        if array.dtype.hasobject:
            results.append(next(received))
            continue
        # a copy: a piece may begin anywhere, but frameworks require alignment
        results.append(
            flat[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape).copy()
        )
        begin += array.nbytes
    return results


def _unchanged(
    owners: Sequence[Any], values: Sequence[Array], read: Callable[[Any], Array]
) -> Callable[[], bool | None]:
    """Return a function that returns whether ``owners`` still hold ``values``; None if all owners
    are deleted. Deleted owners do not count. Objects are not compared.
    """
    pairs = [
        (owner, value)
        for owner, value in zip(owners, values, strict=True)
        if not value.dtype.hasobject
    ]
    held = [(weakref.ref(owner), digest(value)) for owner, value in pairs]

    def unchanged() -> bool | None:
        there = [(owner, number) for find, number in held if (owner := find()) is not None]
        try:
            return all(digest(read(owner)) == number for owner, number in there) if there else None
        except Exception:  # the framework is shutting down, too
            return None

    return unchanged


def _check(
    tables: Sequence[list[tuple[tuple[int, ...], str]]],
    names: Sequence[str],
    process_set: ProcessSet,
) -> None:
    odd = next((place for place, table in enumerate(tables) if table != tables[0]), None)
    if odd is None:
        return
    ranks = process_set.ranks or range(len(tables))
    mine, theirs = tables[0], tables[odd]
    if len(mine) != len(theirs):
        named = allgather_object([*names], process_set=process_set)
        first, other = f"rank {ranks[0]}", f"rank {ranks[odd]}"
        what = f"{first} has {len(mine)}, {other} has {len(theirs)}"
        what += names_of_one(first, named[0], other, named[odd])
    else:
        number = next(
            number
            for number, pair in enumerate(zip(mine, theirs, strict=True))
            if pair[0] != pair[1]
        )
        what = (
            f"number {number} (here {names[number] if number < len(names) else '?'}) is"
            f" {mine[number]} on rank {ranks[0]} and {theirs[number]} on rank {ranks[odd]} (shape,"
            " type)"
        )
    raise ValueError(f"broadcast: {_SAME}, but {what}")
