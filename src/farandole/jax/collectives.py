"""The collectives on JAX arrays: at once outside of programs, and inside ``jit``, ``grad``,
``vmap`` and ``scan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from farandole.base.types import DType, Kind
from farandole.core.api.compression import CastCompressor, Compressing, Compressor, NoneCompressor
from farandole.core.api.documented import collective, documented
from farandole.core.api.gather import gather_by
from farandole.core.api.ops import WORLD, place_of, reduce_op
from farandole.jax import differentiable
from farandole.jax.calls import Collective, last_to_join, meet
from farandole.jax.primitive import host_call, wait
from farandole.job.context import ProcessSet

Tree = TypeVar("Tree")  # a container of arrays


class _Cast(CastCompressor):
    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (
            tensor.astype(cls.dtype.value) if jnp.issubdtype(tensor.dtype, jnp.floating) else tensor
        ), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor.astype(ctx)


class Compression:
    """How arrays travel: ``none``, ``fp16``, ``bf16``, or a subclass of ``Compressor`` of
    your own.
    """

    Compressor = Compressor
    none = NoneCompressor

    class fp16(_Cast):
        dtype = DType.FLOAT16

    class bf16(_Cast):
        dtype = DType.BFLOAT16


@overload
def allreduce(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> jax.Array: ...
@overload
def allreduce(  # type: ignore[overload-cannot-match]  # without JAX, ArrayLike is anything
    tensor: Tree,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> Tree: ...
@collective(
    "op",
    tensor="this rank's array, or a container (dictionary, list, ...) of arrays.",
    example=(
        "metrics = hvd.allreduce({'loss': loss, 'accuracy': accuracy})  # the means over all ranks"
    ),
)
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> Any:
    """The reduction of every rank's ``tensor``, as a new array of its shape and type.

    Any shape; shape and type must be the same on all ranks, which all get the same bits. float16
    and bfloat16 are summed in float32, and rounded once. Gradients pass through it.

    A container (dictionary, list, ... of arrays: metrics, say) is reduced as one unit, and gives
    one of its kind.
    """
    leaves, kind = jax.tree_util.tree_flatten(tensor)
    call = Collective(
        Kind.ALLREDUCE,
        name,
        process_set,
        reduce_op(average, op),
        prescale_factor,
        postscale_factor,
        grouped=not jax.tree_util.treedef_is_leaf(kind),
    )
    return jax.tree_util.tree_unflatten(kind, _reduced(call, leaves, compression))


@collective("op")
def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> list[jax.Array]:
    """``allreduce`` of several arrays as one unit."""
    how = reduce_op(average, op), prescale_factor, postscale_factor
    return _reduced(
        Collective(Kind.ALLREDUCE, name, process_set, *how, grouped=True), tensors, compression
    )


@collective(
    "rows", example="rows = hvd.allgather(predictions)  # shape (sum of all ranks' rows, ...)"
)
def allgather(
    tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = WORLD
) -> jax.Array:
    """Every rank's ``tensor``, one below the other in rank order, as a new array.

    At least one dimension. Outside of jit, the first may differ from rank to rank; the others and
    the type may not.
    """
    return differentiable.apply(Collective(Kind.ALLGATHER, name, process_set), as_arrays([tensor]))[
        0
    ]


@collective("rows")
def grouped_allgather(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = WORLD
) -> list[jax.Array]:
    """``allgather`` of several arrays as one unit."""
    return differentiable.apply(
        Collective(Kind.ALLGATHER, name, process_set, grouped=True), as_arrays(tensors)
    )


@collective("root", example="weights = hvd.broadcast(weights, root_rank=0)")
def broadcast(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> jax.Array:
    """``root_rank``'s ``tensor``, as a new array on every rank. Shape and type must be the same on
    all ranks.
    """
    place_of(root_rank, process_set)
    return differentiable.apply(
        Collective(Kind.BROADCAST, name, process_set, root=root_rank), as_arrays([tensor])
    )[0]


@overload
def alltoall(
    tensor: ArrayLike, splits: None = None, name: str | None = None, process_set: ProcessSet = WORLD
) -> jax.Array: ...
@overload
def alltoall(
    tensor: ArrayLike,
    splits: Sequence[int] | ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
) -> tuple[jax.Array, jax.Array]: ...
@collective(
    "rows",
    "splits",
    example=(
        "received, rows = hvd.alltoall(tensor, splits=[1, 2])  # a row for rank 0, two for rank 1"
    ),
)
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Deal the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly without
    ``splits``).

    Gives what this rank received, in rank order; with ``splits`` (outside of jit only) a pair:
    that, and how many rows came from each rank (int32). Dimensions but the first, and the type,
    must be the same on all ranks.
    """
    dealt = None if splits is None else differentiable.splits_of(splits)
    outputs = differentiable.apply(
        Collective(Kind.ALLTOALL, name, process_set, splits=dealt), as_arrays([tensor])
    )
    return outputs[0] if splits is None else (outputs[0], outputs[1])


gather = gather_by(alltoall)


@collective(
    "op",
    "rows",
    op="Average (the default) or Sum.",
    example="mine = hvd.reducescatter(tensor, op=hvd.Sum)  # 5 rows on 2 ranks: 3 and 2",
)
def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> jax.Array:
    """This rank's rows of the reduction, as a new array.

    Shape and type must be the same on all ranks; at least one dimension. What ranks do not divide
    goes one row each to the first ranks.
    """
    how = reduce_op(None, op), prescale_factor, postscale_factor
    return _reduced(Collective(Kind.REDUCESCATTER, name, process_set, *how), [tensor], compression)[
        0
    ]


@collective("op", "rows", op="Average (the default) or Sum.")
def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[jax.Array]:
    """``reducescatter`` of several arrays as one unit."""
    how = reduce_op(None, op), prescale_factor, postscale_factor
    return _reduced(
        Collective(Kind.REDUCESCATTER, name, process_set, *how, grouped=True), tensors, compression
    )


class _Barrier(NamedTuple):
    """See ``primitive.HostCall``."""

    process_set: ProcessSet
    elementwise: bool | None = None
    in_place: bool = False

    def __str__(self) -> str:
        return "barrier"

    def shapes(self, shapes: Any, dtypes: Any) -> list[Any]:
        return []

    def run(self, arrays: Any, jitted: bool) -> list[Any]:
        meet(self.process_set)
        return []


@documented("init", "set", "disagree")
def barrier(process_set: ProcessSet = WORLD) -> None:
    """Return when all ranks (of the set) have come here, and all that this thread dispatched before
    is done. In a program: its collectives go on when all ranks are there.
    """
    host_call(_Barrier(process_set), [])


@documented(
    "init",
    "failed",
    example="for batch in batches:  # more on some ranks\n    train(batch)\nlast = hvd.join()",
)
def join(device: int = -1) -> int:
    """This rank has no more data: it takes part in the others' allreduces, with zeros for sums and
    averages and what changes nothing for the other operations, until all ranks have joined. The
    rank that joined last. Outside of jit.
    """
    wait()
    return last_to_join()


def _reduced(call: Collective, tensors: Sequence[Any], compression: Any) -> list[Any]:
    pairs = [compression.compress(tensor) for tensor in as_arrays(tensors)]
    done = differentiable.apply(call, [small for small, _ in pairs])
    return [
        compression.decompress(result, token)
        for result, (_, token) in zip(done, pairs, strict=True)
    ]


def as_arrays(tensors: Sequence[Any]) -> list[Any]:
    """JAX arrays of what may be numpy arrays or numbers."""
    return [tensor if isinstance(tensor, jax.Array) else jnp.asarray(tensor) for tensor in tensors]
