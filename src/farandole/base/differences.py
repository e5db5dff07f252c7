"""Descriptions of differences between the ranks' lists of named arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Row = tuple[Hashable, ...]  # a name and the properties that must be the same


def first_difference(
    tables: Sequence[Sequence[Row]], columns: Sequence[str], ranks: Sequence[int] = ()
) -> str:
    """Return the first difference between rank 0's table and another; empty if there is none.

    ``columns`` are the labels of the row elements after the name. ``ranks`` are the owners of the
    tables; 0, 1, ... if empty.
    """
    odd = next(
        (place for place, table in enumerate(tables) if list(table) != list(tables[0])), None
    )
    if odd is None:
        return ""
    first, other = (f"rank {ranks[place] if ranks else place}" for place in (0, odd))
    mine, theirs = tables[0], tables[odd]
    if len(mine) != len(theirs):
        some = names_of_one(first, [row[0] for row in mine], other, [row[0] for row in theirs])
        return f"{first} has {len(mine)}, {other} has {len(theirs)}{some}"
    number, one, two = next(
        (number, one, two)
        for number, (one, two) in enumerate(zip(mine, theirs, strict=True))
        if one != two
    )
    if one[0] != two[0]:
        return f"number {number} is {one[0]!r} on {first} and {two[0]!r} on {other}"
    column, here, there = "description", one[1:], two[1:]
    if len(one) == len(two):
        parts = zip(columns, one[1:], two[1:], strict=True)
        differing = (part for part in parts if part[1] != part[2])
        column, here, there = next(differing)  # type: ignore[assignment]
    return f"{one[0]!r} has {column} {here} on {first} and {there} on {other}"


def names_of_one(
    first: str, mine: Sequence[Hashable], other: str, theirs: Sequence[Hashable]
) -> str:
    """Return the names that only ``first`` or ``other`` has, preceded by a semicolon; empty without
    such names.
    """
    only = [(first, _without(mine, theirs)), (other, _without(theirs, mine))]
    return "".join(f"; only {who} has {_listed(names)}" for who, names in only if names)


def _without(some: Sequence[Hashable], others: Sequence[Hashable]) -> list[Hashable]:
    known = set(others)
    return [name for name in some if name not in known]


def _listed(names: Sequence[Hashable]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
