"""The collectives on JAX arrays: eager, and inside ``jit``, ``grad``, ``vmap`` and ``scan``."""

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
    """Compression of arrays for the exchange: ``none``, ``fp16``, ``bf16``, or a custom subclass of
    ``Compressor``.
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
    """Reduce every rank's ``tensor`` to a new array of its shape and type.

    Any shape; shape and type must be the same on all ranks, and the result is bit-identical on all
    of them. float16 and bfloat16 are summed in float32 and rounded once. Differentiable.

    A container of arrays (a dictionary or list of metrics, for example) is reduced as one unit, to
    a container of the same kind.
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
    """Reduce several arrays as one unit; see ``allreduce``."""
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
    """Concatenate every rank's ``tensor`` in rank order, as a new array.

    At least one dimension. Outside jit, the first may differ between ranks; the others and the type
    may not.
    """
    return differentiable.apply(Collective(Kind.ALLGATHER, name, process_set), as_arrays([tensor]))[
        0
    ]


@collective("rows")
def grouped_allgather(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = WORLD
) -> list[jax.Array]:
    """Gather several arrays as one unit; see ``allgather``."""
    return differentiable.apply(
        Collective(Kind.ALLGATHER, name, process_set, grouped=True), as_arrays(tensors)
    )


@collective("root", example="weights = hvd.broadcast(weights, root_rank=0)")
def broadcast(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> jax.Array:
    """Return ``root_rank``'s ``tensor`` as a new array on every rank. Shape and type must be the
    same on all ranks.
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
    """Distribute the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly
    without ``splits``).

    Returns the received rows in rank order; with ``splits`` (outside jit only), returns a pair of
    the rows and the number of rows from each rank (int32, or int64 if one exceeds it). The type,
    and all dimensions but the first, must be the same on all ranks.

    Raises RequestError on a rank that sends 2^31 rows or more to one rank without jax_enable_x64.
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
    """Return this rank's rows of the reduction, as a new array.

    Shape and type must be the same on all ranks; at least one dimension. If the rows do not divide
    evenly, the first ranks get one more each.
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
    """Reduce and scatter several arrays as one unit; see ``reducescatter``."""
    how = reduce_op(None, op), prescale_factor, postscale_factor
    return _reduced(
        Collective(Kind.REDUCESCATTER, name, process_set, *how, grouped=True), tensors, compression
    )


class _Barrier(NamedTuple):
    """A barrier as a host call. See ``primitive.HostCall``."""

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
    """Wait until all ranks (of the set) have called this, and until all collectives that this
    thread has dispatched are done. Inside a program: its later collectives wait for all ranks.
    """
    host_call(_Barrier(process_set), [])


@documented(
    "init",
    "failed",
    example="for batch in batches:  # more on some ranks\n    train(batch)\nlast = hvd.join()",
)
def join(device: int = -1) -> int:
    """Join: this rank has no more data, and takes part in the others' allreduces until all ranks
    have joined, with zeros for sums and averages and neutral values for other operations. Returns
    the rank that joined last. Outside jit only.
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
    """Return JAX arrays for JAX arrays, numpy arrays or numbers."""
    return [tensor if isinstance(tensor, jax.Array) else jnp.asarray(tensor) for tensor in tensors]
