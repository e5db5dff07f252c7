"""Collectives on MXNet's arrays, and compression.

A collective whose result has the input's shape returns once the input is computed (see
``pending``); others wait for the result.
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
    """Reduce every rank's ``tensor`` to a new array of its shape and type.

    Any shape; shape and type must be the same on all ranks, and the result is bit-identical on all
    of them. float16 and bfloat16 are summed in float32 and rounded once. Returns once the input is
    computed. An error that affects all ranks (such as mismatched shapes) is raised when the result
    is read: HorovodInternalError, which is an MXNetError here.
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
    """Reduce in place; see ``allreduce``. Overwrites ``tensor`` and returns it."""
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
    """Reduce several arrays as one unit; see ``allreduce``."""
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
    """Reduce several arrays in place; see ``grouped_allreduce``. Overwrites ``tensors`` and returns
    them as a list.
    """
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
    """Return ``root_rank``'s ``tensor`` as a new array on every rank. Shape and type must be the
    same on all ranks.
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
    """Broadcast in place; see ``broadcast``. Overwrites ``tensor`` and returns it."""
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
    """Concatenate every rank's ``tensor`` in rank order, as a new array.

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
    """Gather several arrays as one unit; see ``allgather``."""
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
    """Distribute the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly
    without ``splits``).

    Returns the received rows in rank order; with ``splits``, returns a pair of the rows and the
    number of rows from each rank (int32, or int64 if one exceeds it; on the host). The type, and
    all dimensions but the first, must be the same on all ranks.
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
    """Return this rank's rows of the reduction, as a new array.

    Shape and type must be the same on all ranks; at least one dimension. If the rows do not divide
    evenly, the first ranks get one more each.
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
    """Reduce and scatter several arrays as one unit; see ``reducescatter``."""
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
    """Start a collective over ``pairs`` and return its promised targets. Raises errors of this rank
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
    """The outcome of a collective, reported to each of its arrays on any thread."""

    def __init__(self, handle: int) -> None:
        self._handle, self._lock = handle, threading.Lock()
        self._waiting: list[pending.Keep] | None = []  # None once the collective has ended
        self._error: Exception | None = None
        collectives.when_done(handle, self._ended)

    def tell(self, keep: pending.Keep) -> None:
        """Call ``keep`` with the error or None, once the collective has ended."""
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
    """Compression of gradients: ``none``, ``fp16``, or a custom subclass of ``Compressor``."""

    Compressor = Compressor
    none = NoneCompressor

    class fp16(CastCompressor):
        binding = binding
        dtype = DType.FLOAT16
