"""The collectives on MXNet's arrays, and compression.

What has the shape of its input returns when that has been computed (see ``pending``); what becomes
larger or smaller waits for its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from farandole.base.types import DType, ReduceOp
from farandole.core.api.collectives import Collectives
from farandole.core.api.compression import CastCompressor, Compressor, NoneCompressor
from farandole.core.api.documented import collective
from farandole.core.api.gather import gather_by
from farandole.core.api.ops import WORLD
from farandole.errors import HorovodInternalError
from farandole.job import context
from farandole.mxnet import pending
from farandole.mxnet.binding import (
    MXNetBinding,
    Pair,
    copied,
    dtype_of,
    empty_like,
    on_host,
    reordered_by_readers,
)

ProcessSet = context.ProcessSet
binding = MXNetBinding()
collectives: Collectives[Any, Any] = Collectives(binding)

barrier = collectives.barrier
join = collectives.join


@collective("op", example="loss = hvd.allreduce(loss, name='loss')  # the mean over all ranks")
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    op: int | None = None,
) -> Any:
    """The reduction of every rank's ``tensor``, as a new array of its shape and type.

    Any shape; shape and type must be the same on all ranks, which all get the same bits. float16
    and bfloat16 are summed in float32, and rounded once. Returns when its input has been computed.
    An error that all ranks are told (mismatched shapes, say) is raised when the array is read:
    HorovodInternalError, which is an MXNetError here.
    """
    pair = _fresh(tensor)
    return _run(
        lambda: collectives.allreduce_async_(
            pair, average, name, op, prescale_factor, postscale_factor, process_set
        ),
        [pair],
        priority,
    )[0]


@collective("op")
def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    op: int | None = None,
) -> Any:
    """``allreduce`` in place: overwrites ``tensor``, and returns it."""
    pair = Pair(tensor, tensor)
    return _run(
        lambda: collectives.allreduce_async_(
            pair, average, name, op, prescale_factor, postscale_factor, process_set
        ),
        [pair],
        priority,
    )[0]


@collective("op")
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    op: int | None = None,
) -> list[Any]:
    """``allreduce`` of several arrays as one unit."""
    pairs = [_fresh(tensor) for tensor in tensors]
    return _run(
        lambda: collectives.grouped_allreduce_async_(
            pairs, average, name, op, prescale_factor, postscale_factor, process_set
        ),
        pairs,
        priority,
    )


@collective("op")
def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    op: int | None = None,
) -> list[Any]:
    """``grouped_allreduce`` in place: overwrites ``tensors``, and returns them as a list."""
    pairs = [Pair(tensor, tensor) for tensor in tensors]
    return _run(
        lambda: collectives.grouped_allreduce_async_(
            pairs, average, name, op, prescale_factor, postscale_factor, process_set
        ),
        pairs,
        priority,
    )


@collective("root", example="weights = hvd.broadcast(weights, root_rank=0)")
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = WORLD,
) -> Any:
    """``root_rank``'s ``tensor``, as a new array on every rank. Shape and type must be the same on
    all ranks.
    """
    pair = _fresh(tensor)
    return _run(
        lambda: collectives.broadcast_async_(pair, root_rank, name, process_set), [pair], priority
    )[0]


@collective("root")
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = WORLD,
) -> Any:
    """``broadcast`` in place: overwrites ``tensor``, and returns it."""
    pair = Pair(tensor, tensor)
    return _run(
        lambda: collectives.broadcast_async_(pair, root_rank, name, process_set), [pair], priority
    )[0]


@collective(
    "rows", example="rows = hvd.allgather(predictions)  # shape (sum of all ranks' rows, ...)"
)
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = WORLD
) -> Any:
    """Every rank's ``tensor``, one below the other in rank order, as a new array.

    At least one dimension. The first may differ from rank to rank, the others and the type may not.
    """
    return collectives.allgather(tensor, name, process_set)


@collective("rows")
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = WORLD,
) -> list[Any]:
    """``allgather`` of several arrays as one unit."""
    return list(collectives.grouped_allgather(tensors, name, process_set))


@collective(
    "rows",
    "splits",
    example=(
        "received, rows = hvd.alltoall(tensor, splits=[1, 2])  # a row for rank 0, two for rank 1"
    ),
)
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Deal the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly without
    ``splits``).

    Gives what this rank received, in rank order; with ``splits`` a pair: that, and how many rows
    came from each rank (int32, on the host). Dimensions but the first, and the type, must be the
    same on all ranks.
    """
    if hasattr(splits, "asnumpy"):
        splits = splits.asnumpy()
    return collectives.alltoall(tensor, splits, name, process_set)


gather = gather_by(alltoall)


@collective(
    "op",
    "rows",
    op="Average (the default) or Sum.",
    example="mine = hvd.reducescatter(tensor, op=hvd.Sum)  # 5 rows on 2 ranks: 3 and 2",
)
def reducescatter(
    tensor: Any,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction, as a new array.

    Shape and type must be the same on all ranks; at least one dimension. What ranks do not divide
    goes one row each to the first ranks.
    """
    return collectives.reducescatter(
        tensor, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
    )


@collective("op", "rows", op="Average (the default) or Sum.")
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """``reducescatter`` of several arrays as one unit."""
    return collectives.grouped_reducescatter(
        tensors, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
    )


def _fresh(tensor: Any) -> Pair:
    dtype_of(tensor)
    if on_host(tensor) and reordered_by_readers(tensor):
        target = copied(tensor)
        return Pair(target, target)
    return Pair(tensor, empty_like(tensor))


def _run(start: Callable[[], int], pairs: Sequence[Pair], priority: int) -> list[Any]:
    """Start a collective over ``pairs``; their targets, promised. Raises what is wrong on this rank
    alone.
    """
    handle = start()
    targets = [pair.target for pair in pairs]
    if context.size() == 1 or not pending.possible() or not all(map(on_host, targets)):
        collectives.synchronize(handle)
        return targets
    outcome = _Outcome(handle)
    for source, target in pairs:
        pending.promise(source, target, priority, outcome.tell)
    return targets


class _Outcome:
    """How a collective ends: told to each of its arrays, on whichever thread."""

    def __init__(self, handle: int) -> None:
        self._handle, self._lock = handle, threading.Lock()
        self._waiting: list[pending.Keep] | None = []  # None: it has ended
        self._error: Exception | None = None
        collectives.when_done(handle, self._ended)

    def tell(self, keep: pending.Keep) -> None:
        """Call ``keep`` with what it failed with, or None, when it has ended."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(keep)
                return
        keep(self._error)

    def _ended(self) -> None:
        try:
            collectives.synchronize(self._handle)
        except HorovodInternalError as error:
            self._error = error
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
        for keep in waiting:
            keep(self._error)


class Compression:
    """How gradients travel: ``none``, ``fp16``, or a subclass of ``Compressor`` of your own."""

    Compressor = Compressor
    none = NoneCompressor

    class fp16(CastCompressor):
        binding = binding
        dtype = DType.FLOAT16
