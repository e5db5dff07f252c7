"""Broadcasts of trees of arrays (parameters, optimizer state), and comparisons between ranks."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from farandole.core.api import objects
from farandole.core.api.arrays import broadcast_arrays, check_same_variables
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.jax.gradients import names_of
from farandole.jax.primitive import wait
from farandole.job.context import ProcessSet

Tree = TypeVar("Tree")


@documented(
    "init",
    "disagree",
    "set",
    "root",
    "ValueError: inside jit; or, on all ranks, their arrays differ.",
    params=(
        "any tree of arrays and numbers: parameters, the state of an optimizer. The same structure"
        " on all ranks."
    ),
    example=(
        "params = hvd.broadcast_parameters(params)\nopt_state ="
        " hvd.broadcast_parameters(optimizer.init(params))"
    ),
)
def broadcast_parameters(params: Tree, root_rank: int = 0, process_set: ProcessSet = WORLD) -> Tree:
    """Return ``root_rank``'s tree on every rank, as a new tree: ``params =
    hvd.broadcast_parameters(params, root_rank=0)``.

    Arrays of any type (including random keys) and numbers are sent; other leaves are unchanged. Not
    for use inside ``jit``. Raises ValueError on all ranks if the trees have different arrays.
    """
    leaves, kind = jax.tree_util.tree_flatten(params)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise ValueError(
            "broadcast_parameters must be called before training, outside of jit. Inside jit use"
            " broadcast(array)"
        )
    wait()
    places = [place for place, leaf in enumerate(leaves) if is_array(leaf)]
    names = names_of(params)
    numbers = {
        place: leaf
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, (bool, int, float, complex))
    }
    kinds = ["a number" if place in numbers else "an array" for place in range(len(leaves))]
    check_same_variables(
        [(names[place], kinds[place]) for place in sorted({*places, *numbers})],
        ("type",),
        process_set,
    )
    arrays = [on_host(leaves[place]) for place in places]
    sent = broadcast_arrays(arrays, [names[place] for place in places], root_rank, process_set)
    for place, array in zip(places, sent, strict=True):
        leaves[place] = like(leaves[place], array)
    for place, number in broadcast_object(numbers, root_rank, process_set=process_set).items():
        leaves[place] = number
    return jax.tree_util.tree_unflatten(kind, leaves)  # type: ignore[no-any-return]


@documented(
    "init",
    "disagree",
    "set",
    "root",
    example="options = hvd.broadcast_object(options, root_rank=0)",
)
def broadcast_object(
    obj: Tree, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = WORLD
) -> Tree:
    """Return ``root_rank``'s ``obj`` on every rank (on the root: the object itself). Any object
    that cloudpickle supports.
    """
    wait()
    return objects.broadcast_object(obj, root_rank, name, process_set)


@documented(
    "init", "disagree", "set", example="scores = hvd.allgather_object({'rank': hvd.rank()})"
)
def allgather_object(
    obj: Tree, name: str | None = None, process_set: ProcessSet = WORLD
) -> list[Tree]:
    """Return every rank's ``obj``, in rank order."""
    wait()
    return objects.allgather_object(obj, name, process_set)


@documented(
    "init",
    "disagree",
    "set",
    "ValueError, on all ranks: their arrays differ.",
    params="any tree of arrays.",
    example="hvd.check_replicas(params)  # for example after an epoch",
)
def check_replicas(params: Any, process_set: ProcessSet = WORLD) -> None:
    """Raise ValueError, on all ranks, if their arrays are not bit-identical, naming the first that
    differs.

    Use it to verify that gradients are exchanged and that all ranks began with equal values.
    Collective.
    """
    wait()
    leaves = jax.tree_util.tree_leaves(params)
    names = names_of(params)
    mine = [
        (name, zlib.crc32(np.ascontiguousarray(on_host(leaf)).reshape(-1).view(np.uint8).data))
        for name, leaf in zip(names, leaves, strict=True)
        if is_array(leaf)
    ]
    every = allgather_object(mine, process_set=process_set)
    odd = next((rank for rank, theirs in enumerate(every) if theirs != every[0]), None)
    if odd is None:
        return
    pairs = zip(every[0], every[odd], strict=False)
    where = next((one[0] for one, two in pairs if one != two), "the number of arrays")
    ranks = process_set.ranks or range(len(every))
    raise ValueError(
        f"the arrays of the ranks differ: {where} is not the same on rank {ranks[0]} and rank"
        f" {ranks[odd]}. Begin with broadcast_parameters, and let gradients pass through"
        " DistributedOptimizer, distributed_gradients or hvd.value_and_grad"
    )


# Leaves.


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def on_host(leaf: Any) -> Any:
    """Return the values of a leaf as a numpy array."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def like(leaf: Any, array: Any) -> Any:
    """Return ``array`` with the type and placement of ``leaf``."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    if not isinstance(leaf, jax.Array):
        return array
    # A weakly typed scalar, as from jnp.asarray(1.0): its products keep the dtype of the other
    # factor.
    if leaf.weak_type and leaf.ndim == 0:
        number = jnp.asarray(array.item())
        array = number if number.dtype == leaf.dtype else array
    return jax.device_put(array, leaf.sharding)
