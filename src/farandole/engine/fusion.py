"""Which of the agreed collectives run as one? Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from farandole.types import Kind, Request, Response


class Unit(NamedTuple):
    """Collectives that run together. ``requests`` are this rank's own, or another's where this rank has joined;
    ``parts`` and ``absent`` as in Response."""

    kind: Kind
    names: tuple[str, ...]
    requests: tuple[Request, ...]
    parts: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    absent: tuple[int, ...] = ()


def plan(responses: Sequence[Response], own: Callable[[str], Request | None], threshold: int) -> list[Unit]:
    """Fuse allreduces of one dtype, operation and scale until ``threshold`` bytes are together.

    A tensor that does not fit leaves room for later, smaller ones; a group stays together whatever its size. The
    order among units follows the first member of each, so it is the same on all ranks.
    """
    units: list[Unit] = []
    open_units: dict[tuple[object, ...], tuple[int, int]] = {}  # what must agree -> (position, bytes so far)
    for response in responses:
        absent = response.absent
        requests = tuple(own(name) or asked for name, asked in zip(response.names, response.requests, strict=True))
        if response.error or response.kind is not Kind.ALLREDUCE:
            units.append(Unit(response.kind, response.names, requests, response.parts, response.error, absent))
            continue
        for names, members in _by_dtype(response.names, requests):
            first = members[0]
            key = (first.dtype, first.op, first.prescale, first.postscale, absent)
            nbytes = sum(_nbytes(request) for request in members)
            position, filled = open_units.get(key, (-1, 0))
            if position >= 0 and filled + nbytes <= threshold:
                unit = units[position]
                units[position] = unit._replace(names=unit.names + names, requests=unit.requests + members)
                open_units[key] = (position, filled + nbytes)
            else:
                units.append(Unit(Kind.ALLREDUCE, names, members, absent=absent))
                if position < 0 or nbytes < filled:
                    open_units[key] = (len(units) - 1, nbytes)
    return units


def _by_dtype(
    names: tuple[str, ...], requests: tuple[Request, ...]
) -> list[tuple[tuple[str, ...], tuple[Request, ...]]]:
    """A group may mix dtypes; one reduction cannot."""
    if all(request.dtype == requests[0].dtype for request in requests):
        return [(names, requests)]
    dtypes = dict.fromkeys(request.dtype for request in requests)
    return [
        (
            tuple(name for name, request in zip(names, requests, strict=True) if request.dtype == dtype),
            tuple(request for request in requests if request.dtype == dtype),
        )
        for dtype in dtypes
    ]


def _nbytes(request: Request) -> int:
    count = 1
    for length in request.shape:
        count *= length
    return count * request.dtype.itemsize
