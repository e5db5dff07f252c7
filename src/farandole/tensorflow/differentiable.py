"""Differentiable collectives.

Gradients are those with respect to the sum of all ranks' losses. The exceptions follow Horovod:
gradients of allgather and broadcast are averaged over the ranks, and gradients of reducescatter are
not divided (docs/tensorflow.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import collective
from farandole.core.api.gather import gather_by
from farandole.core.api.ops import WORLD, reduce_op
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.tensorflow import functions, reductions
from farandole.tensorflow.functions import Names
from farandole.tensorflow.sparse import allreduce_slices, check_slices, is_slices, tensor_of


@collective("op", example="loss = hvd.allreduce(loss, name='loss')  # the mean over all ranks")
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce every rank's ``tensor`` to a new tensor of its shape and type.

    Any shape; shape and type must be the same on all ranks, and the result is bit-identical on all
    of them. float16 and bfloat16 are summed in float32 and rounded once. Differentiable.

    For tf.IndexedSlices, the rows of all ranks are gathered (Average divides them); the result is
    tf.IndexedSlices.
    """
    chosen = reduce_op(average, op)
    if is_slices(tensor):
        names = Names("Allreduce", name, ignore_name_scope)
        return allreduce_slices(
            tensor, chosen, prescale_factor, postscale_factor, compression, names, process_set
        )
    (total,) = _reduced(
        [tensor],
        chosen,
        prescale_factor,
        postscale_factor,
        compression,
        Names("Allreduce", name, ignore_name_scope),
        process_set,
        grouped=False,
    )
    return total


@collective(
    "op",
    tensors="this rank's tensors: the same number on all ranks, in the same order. None"
    " remains None.",
)
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors as one unit; see ``allreduce``. None stays None, and each
    tf.IndexedSlices is exchanged separately.
    """
    chosen = reduce_op(average, op)
    results = list(tensors)
    if any(map(is_slices, results)):
        check_slices(chosen, prescale_factor, postscale_factor)
    dense = [
        place
        for place, tensor in enumerate(results)
        if tensor is not None and not is_slices(tensor)
    ]
    if dense:
        totals = _reduced(
            [results[place] for place in dense],
            chosen,
            prescale_factor,
            postscale_factor,
            compression,
            Names("GroupedAllreduce", name, ignore_name_scope),
            process_set,
            grouped=True,
        )
        for place, total in zip(dense, totals, strict=True):
            results[place] = total
    for place, tensor in enumerate(results):
        if is_slices(tensor):
            names = Names(
                "Allreduce", None if name is None else f"{name}_{place}", ignore_name_scope
            )
            results[place] = allreduce_slices(
                tensor, chosen, prescale_factor, postscale_factor, compression, names, process_set
            )
    return results


def _reduced(
    tensors: Sequence[Any],
    op: ReduceOp,
    pre: float,
    post: float,
    compression: Any,
    names: Names,
    process_set: ProcessSet,
    *,
    grouped: bool,
) -> list[Any]:
    pairs = [compression.compress(tensor_of(tensor)) for tensor in tensors]
    totals = reductions.reduced(
        [small for small, _ in pairs], op, pre, post, names, process_set, grouped
    )
    return [
        compression.decompress(total, token)
        for total, (_, token) in zip(totals, pairs, strict=True)
    ]


@collective(
    "rows", example="rows = hvd.allgather(predictions)  # shape (sum of all ranks' rows, ...)"
)
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Concatenate every rank's ``tensor`` in rank order, as a new tensor.

    At least one dimension. The first may differ from rank to rank, the others and the type may not.
    """
    return _gathered(
        [tensor], Names("Allgather", name, ignore_name_scope), process_set, grouped=False
    )[0]


@collective("rows")
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = WORLD,
) -> list[Any]:
    """Gather several tensors as one unit; see ``allgather``."""
    if not tensors:
        return []
    return _gathered(
        tensors, Names("GroupedAllgather", name, ignore_name_scope), process_set, grouped=True
    )


def _gathered(
    values: Sequence[Any], names: Names, process_set: ProcessSet, *, grouped: bool
) -> list[Any]:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(*tensors: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in tensors])[None]
            means = reductions.reduced(
                dense(upstream),
                ReduceOp.AVERAGE,
                1.0,
                1.0,
                names.and_("_gradient"),
                process_set,
                grouped,
            )
            (every,) = functions.gather([rows], names.and_("_rows"), process_set, False)
            before = tf.reduce_sum(every[: context.engine(process_set).rank], axis=0)
            return [
                mean[before[place] : before[place] + rows[0, place]]
                for place, mean in enumerate(means)
            ]

        return functions.gather(tensors, names, process_set, grouped), gradient

    return list(gather(*map(tensor_of, values)))


@collective("root", example="weights = hvd.broadcast(weights, root_rank=0)")
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Return ``root_rank``'s ``tensor`` as a new tensor on every rank. Shape and type must be the
    same on all ranks.
    """
    names = Names("Broadcast", name, ignore_name_scope)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def spread(tensor: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            (mean,) = reductions.reduced(
                dense([upstream]),
                ReduceOp.AVERAGE,
                1.0,
                1.0,
                names.and_("_gradient"),
                process_set,
                False,
            )
            if context.rank() == root_rank:
                return mean
            with tf.control_dependencies([mean]):  # otherwise a session would skip it
                return tf.zeros_like(mean)

        return functions.spread(tensor, root_rank, names, process_set), gradient

    return spread(tensor_of(tensor))


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
    ignore_name_scope: bool = False,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Distribute the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly
    without ``splits``).

    Returns the received rows in rank order; with ``splits``, returns a pair of the rows and the
    number of rows from each rank (int32; eagerly int64 if one exceeds it). The type, and all
    dimensions but the first, must be the same on all ranks.

    Raises RequestError in a graph on a rank that sends 2^31 rows or more to one rank.
    """
    names = Names("Alltoall", name, ignore_name_scope)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def deal(tensor: Any, *splits: Any) -> Any:
        both = functions.deal(tensor, splits[0] if splits else None, names, process_set)

        def gradient(upstream: Any, *_: Any) -> Any:
            (gradient,) = dense([upstream])
            back = alltoall(
                gradient, both[1], names.and_("_gradient").name, names.ignore, process_set
            )[0]
            return (back, None) if splits else back

        return both, gradient

    tensor = tensor_of(tensor)
    if splits is None:
        return deal(tensor)[0]
    return tuple(deal(tensor, tf.convert_to_tensor(splits)))


gather = gather_by(alltoall, lambda tensor: tf.shape(tensor, tf.int64)[0])


@collective(
    "op",
    "rows",
    op="Average (the default) or Sum.",
    example="mine = hvd.reducescatter(tensor, op=hvd.Sum)  # 5 rows on 2 ranks: 3 and 2",
)
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = NoneCompressor,
    op: int | None = None,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's rows of the reduction, as a new tensor.

    Shape and type must be the same on all ranks; at least one dimension. If the rows do not divide
    evenly, the first ranks get one more each.
    """
    names = Names("Reducescatter", name, ignore_name_scope)
    factors = (prescale_factor, postscale_factor)
    return _scattered(
        [tensor], compression, reduce_op(None, op), factors, names, process_set, grouped=False
    )[0]


@collective("op", "rows", op="Average (the default) or Sum.")
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = NoneCompressor,
    op: int | None = None,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce and scatter several tensors as one unit; see ``reducescatter``."""
    if not tensors:
        return []
    names = Names("GroupedReducescatter", name, ignore_name_scope)
    factors = (prescale_factor, postscale_factor)
    return _scattered(
        tensors, compression, reduce_op(None, op), factors, names, process_set, grouped=True
    )


def _scattered(
    values: Sequence[Any],
    compression: Any,
    op: ReduceOp,
    factors: tuple[float, float],
    names: Names,
    process_set: ProcessSet,
    *,
    grouped: bool,
) -> list[Any]:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def scatter(*tensors: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            factor = (
                factors[0]
                * factors[1]
                * (context.engine(process_set).size if op is ReduceOp.SUM else 1)
            )
            scaled = [tensor * factor for tensor in dense(upstream)]
            return _gathered(scaled, names.and_("_gradient"), process_set, grouped=grouped)

        return functions.scatter(tensors, op, *factors, names, process_set, grouped), gradient

    pairs = [compression.compress(tensor_of(value)) for value in values]
    parts = scatter(*[small for small, _ in pairs])
    return [
        compression.decompress(part, token) for part, (_, token) in zip(parts, pairs, strict=True)
    ]


dense = reductions.dense
