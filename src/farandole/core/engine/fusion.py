"""Fusion of agreed collectives into units. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farandole.base.types import Buffer, Kind, Refusal, Request, Response

# A function that computes the results of a unit, as returned by ``execute``, from the messages of
# all ranks and this rank's memory.
Run = Callable[[Sequence[bytes], Sequence[Buffer]], list[Any]]


class Unit(NamedTuple):
    """Collectives that run together.

    ``requests`` are this rank's, or another rank's if this rank has joined. The other fields are as
    in Response.
    """

    kind: Kind
    names: tuple[str, ...]
    requests: tuple[Request, ...]
    parts: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    absent: tuple[int, ...] = ()
    refusal: Refusal = Refusal.MISMATCH


class Placed(NamedTuple):
    """A unit that can be remembered: it refers to its items by their positions in the round's
    batch. ``here``: a function that runs it on elements attached to the messages (``attached``).
    """

    unit: Unit
    positions: tuple[int, ...]
    here: Run | None = None


def plan(
    responses: Sequence[Response], own: Callable[[str], Request | None], threshold: int
) -> list[Unit]:
    """Fuse allreduces of the same dtype, operation and scale up to ``threshold`` bytes.

    A tensor that does not fit leaves room for later, smaller tensors; a group of any size stays
    together. Tensors with a codec are fused within their group only: otherwise the codec's choices
    would depend on other collectives in flight. Units are ordered by their first members, so the
    order is the same on all ranks.
    """
    units: list[Unit] = []
    # attributes that must agree -> (position, bytes so far)
    open_units: dict[tuple[object, ...], tuple[int, int]] = {}
    for response in responses:
        absent = response.absent
        requests = tuple(
            own(name) or asked
            for name, asked in zip(response.names, response.requests, strict=True)
        )
        if response.error or response.kind is not Kind.ALLREDUCE:
            unit = Unit(
                response.kind,
                response.names,
                requests,
                response.parts,
                response.error,
                absent,
                response.refusal,
            )
            units += [unit] if response.error else _by_device(unit)
            continue
        for names, members in _by_reduction(response.names, requests):
            key = (*_terms(members[0]), absent)
            nbytes = sum(_nbytes(request) for request in members)
            position, filled = open_units.get(key, (-1, 0))
            if members[0].codec:
                units.append(Unit(Kind.ALLREDUCE, names, members, absent=absent))
            elif position >= 0 and filled + nbytes <= threshold:
                unit = units[position]
                units[position] = unit._replace(
                    names=unit.names + names, requests=unit.requests + members
                )
                open_units[key] = (position, filled + nbytes)
            else:
                units.append(Unit(Kind.ALLREDUCE, names, members, absent=absent))
                if position < 0 or nbytes < filled:
                    open_units[key] = (len(units) - 1, nbytes)
    return units


def _by_reduction(
    names: tuple[str, ...], requests: tuple[Request, ...]
) -> list[tuple[tuple[str, ...], tuple[Request, ...]]]:
    """Split a group by dtype, operation and scale, so that each part is one reduction."""
    first = _terms(requests[0])
    if all(_terms(request) == first for request in requests):
        return [(names, requests)]
    parts: dict[object, list[tuple[str, Request]]] = {}
    for name, request in zip(names, requests, strict=True):
        parts.setdefault(_terms(request), []).append((name, request))
    return [
        (tuple(name for name, _ in part), tuple(request for _, request in part))
        for part in parts.values()
    ]


def _by_device(unit: Unit) -> list[Unit]:
    """Split a unit by device: a group may have members on several."""
    devices = dict.fromkeys(request.device for request in unit.requests)
    if len(devices) == 1:
        return [unit]
    per_member = len(unit.parts) // len(unit.names)  # parts per member
    units = []
    for device in devices:
        places = [place for place, request in enumerate(unit.requests) if request.device == device]
        parts = tuple(
            part
            for place in places
            for part in unit.parts[place * per_member : (place + 1) * per_member]
        )
        names = tuple(unit.names[place] for place in places)
        units.append(
            unit._replace(
                names=names, requests=tuple(unit.requests[place] for place in places), parts=parts
            )
        )
    return units


def _terms(request: Request) -> tuple[object, ...]:
    return (
        request.dtype,
        request.op,
        request.prescale,
        request.postscale,
        request.device,
        request.codec,
    )


def _nbytes(request: Request) -> int:
    count = 1
    for length in request.shape:
        count *= length
    return count * request.dtype.itemsize
