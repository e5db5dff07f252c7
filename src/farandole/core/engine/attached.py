"""Small tensors attached to the message that requests them: one exchange among the ranks instead of
two.

A rank attaches the elements when all its requests are small and have signature numbers. If all
ranks post the same requests in a round, each rank has all elements and computes the results in rank
order. Otherwise the elements are discarded, and the transport runs the collectives once the ranks
agree. All ranks receive the same messages and make the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.types import Buffer, Kind, Request
from farandole.core.engine import wire
from farandole.core.engine.devices import HOST
from farandole.core.engine.execute import reduces_as_is, reduction
from farandole.core.engine.fusion import Placed, Run, Unit
from farandole.core.kernels import quiet, reducer

if TYPE_CHECKING:
    from farandole.base.types import Array

# bytes per rank; above this, copies and network latency cost more than a second exchange
MOST = 8 << 10
TOGETHER = 64 << 10  # bytes of all ranks
# More ranks use an overlay that relays equal messages as one (``core/transports/tcp/overlay``), but
# messages with elements differ.
CROWD = 32

_NEVER = 1 << 62
_MOVES = (Kind.ALLGATHER, Kind.BROADCAST, Kind.BARRIER)
_Place = tuple[Any, int, int]  # dtype, number of elements, offset in the message


def room(size: int) -> int:
    """Return the number of bytes that each of ``size`` ranks may attach."""
    return min(MOST, TOGETHER // size) if 1 < size <= CROWD else 0


def weight(request: Request) -> int:
    """Return the number of bytes to attach for ``request``; more than the room if it must run on
    the transport.
    """
    if request.device != HOST or not (request.kind in _MOVES or reduces_as_is(request)):
        return _NEVER
    return 0 if request.kind is Kind.BARRIER else math.prod(request.shape) * request.dtype.itemsize


def prepared(decision: Sequence[Placed], batch: Sequence[Request], size: int) -> list[Placed]:
    """Return ``decision`` with runners for attached elements, for rounds in which all ranks post
    ``batch``.
    """
    weights = [weight(request) for request in batch]
    if sum(weights) > room(size):
        return list(decision)
    starts = accumulate(weights, initial=wire.elements_at(len(batch)))
    places = [
        (np.dtype(request.dtype.storage), nbytes // request.dtype.itemsize, start)
        for request, nbytes, start in zip(batch, weights, starts, strict=False)
    ]
    return [
        placed._replace(
            here=_runner(placed.unit, [places[position] for position in placed.positions], size)
        )
        for placed in decision
    ]


def _runner(unit: Unit, places: Sequence[_Place], size: int) -> Run:
    """Return a function that runs ``unit`` on the attached elements of its members at
    ``places``.
    """
    if unit.kind is Kind.ALLREDUCE:
        op, scale = reduction(unit.requests[0], size, size)
        return partial(_allreduce, places, reducer(op, unit.requests[0].dtype, scale))
    if unit.kind is Kind.ALLGATHER:
        return partial(_allgather, places, unit.parts)
    if unit.kind is Kind.BROADCAST:
        return partial(_broadcast, places, [request.root for request in unit.requests])
    # a post is the arrival at a barrier
    return lambda messages, buffers: [None] * len(buffers)


def _allreduce(
    places: Sequence[_Place],
    reduce: Callable[[Array, Sequence[Array]], None],
    messages: Sequence[bytes],
    buffers: Sequence[Buffer],
) -> list[Any]:
    with quiet():
        for buffer, place in zip(buffers, places, strict=True):
            reduce(buffer.out, _parts(messages, place))
    return [None] * len(buffers)


def _allgather(
    places: Sequence[_Place],
    rows: Sequence[tuple[int, ...]],
    messages: Sequence[bytes],
    buffers: Sequence[Buffer],
) -> list[Any]:
    return [
        (np.concatenate(_parts(messages, place)), of)
        for place, of in zip(places, rows, strict=True)
    ]


def _broadcast(
    places: Sequence[_Place],
    roots: Sequence[int],
    messages: Sequence[bytes],
    buffers: Sequence[Buffer],
) -> list[Any]:
    for buffer, place, root in zip(buffers, places, roots, strict=True):
        buffer.out[:] = np.frombuffer(messages[root], *place)
    return [None] * len(buffers)


def _parts(messages: Sequence[bytes], place: _Place) -> list[Array]:
    return [np.frombuffer(message, *place) for message in messages]
