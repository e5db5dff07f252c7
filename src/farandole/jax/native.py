"""JAX's own collectives, if ``jax.distributed`` connects the processes' accelerators (NCCL, ICI;
Gloo on CPUs).

These collectives exist only in programs over a mesh of all processes. The mesh has one device per
rank, and in such a program (``spmd``) every rank sees its own arrays, and the functions of this
package use ``jax.lax``. A call outside of one becomes a small program of this kind, after all ranks
have agreed that their calls match; otherwise XLA's collectives would hang. Plain ``jax.jit`` uses
only this rank's device, and arrays travel through the host.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
from farandole.core.api import objects
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.core.engine import Engine, Entry
from farandole.errors import SettingsError
from farandole.jax.calls import Collective
from farandole.job import context
from farandole.net import interfaces

AXIS = "farandole"
_EVERYWHERE = PartitionSpec()
_meshes: dict[str, tuple[Engine, Mesh]] = {}
_forced: bool | None = None


@documented(
    "init",
    "disagree",
    options="passed on to jax.distributed.initialize.",
    example="hvd.init()\nhvd.init_distributed()  # before any array is created",
)
def init_distributed(**options: Any) -> None:
    """Call ``jax.distributed.initialize`` for the ranks of this job, after ``hvd.init()`` and
    before JAX is used.

    Each rank takes the accelerator of its local rank. ``options`` go to
    ``jax.distributed.initialize``.
    """
    if context.settings().tls and context.local_size() < context.size():
        raise SettingsError(
            "init_distributed(): this job was started with --tls (FARANDOLE_TLS=1), but JAX does"
            " not encrypt its traffic to other hosts. Use only one of them"
        )
    address = None
    if context.rank() == 0:
        here = _here()
        with interfaces.listening(here) as probe:
            address = interfaces.joined(here, probe.getsockname()[1])
    address = objects.broadcast_object(address)
    options.setdefault("local_device_ids", [context.local_rank()])
    jax.distributed.initialize(address, context.size(), context.rank(), **options)


def _here() -> str:
    """Return an address of this host that all ranks can reach. The host's name may resolve to an
    address that other hosts cannot reach (127.0.1.1).
    """
    store = context.store()
    if store is None or context.cross_size() == 1:
        return "127.0.0.1"
    return interfaces.outside(store.host, context.settings().network_interfaces)


@documented(wanted="True, False, or None (True if there are accelerators). The same on all ranks.")
def use_native(wanted: bool | None) -> None:
    """Choose whether to use JAX's own collectives where possible. None: if there are accelerators.
    The same on all ranks.
    """
    global _forced
    _forced = wanted


def active() -> bool:
    """Return whether JAX's own collectives are used."""
    if _forced is False or context.size() == 1 or jax.process_count() != context.size():
        return False
    return bool(_forced or jax.default_backend() != "cpu")


@documented("init", "disagree")
def mesh() -> Mesh:
    """Return a mesh with one device per rank, in the order of ranks. The first call is
    collective.
    """
    engine = context.engine()
    known = _meshes.get("world")
    if known is None or known[0] is not engine:
        context.skip_exchange_check()  # exchanges between devices bypass the engine
        places = objects.allgather_object(jax.process_index(), "jax.process_index")
        firsts = {device.process_index: device for device in reversed(jax.devices())}
        known = _meshes["world"] = (
            engine,
            Mesh(np.array([firsts[place] for place in places]), (AXIS,)),
        )
    return known[1]


@documented(
    "ValueError, when a program is traced: XLA has no collective for a call in it (Adasum,"
    " process sets, splits).",
    fun="a function of arrays, as for jax.jit.",
    options="passed on to jax.jit; static arguments are not supported.",
    example="@hvd.spmd\ndef mean(x):\n    return hvd.allreduce(x)",
)
def spmd(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with ``jax.jit`` a program over the devices of all ranks, if possible: every rank
    calls it with its own arrays, of equal shapes, and gets its own results. ``options`` go to
    ``jax.jit``; static arguments are not supported.

    Inside, collectives are XLA's: between accelerators, without the host. All ranks must trace the
    same program, so computations may not depend on ``hvd.rank()``; they may depend on
    ``jax.lax.axis_index(hvd.AXIS)``.
    """
    plain = jax.jit(fun, **options)
    programs: dict[Any, Any] = {}

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not active():
            return plain(*args, **kwargs)
        where = mesh()
        if where not in programs:
            programs[where] = jax.jit(_shard_map(fun, where), **options)
        sharding = NamedSharding(where, _EVERYWHERE)
        both = jax.tree_util.tree_map(lambda leaf: _spread(leaf, sharding), (args, kwargs))
        found = programs[where](*both[0], **both[1])
        return jax.tree_util.tree_map(lambda leaf: leaf.addressable_data(0), found)

    return run


def _shard_map(fun: Callable[..., Any], where: Mesh) -> Callable[..., Any]:
    """Map ``fun`` over each device's arrays, without JAX's check that arrays are equal on all
    devices.
    """

    def mapped(*args: Any, **kwargs: Any) -> Any:
        def inner(both: Any) -> Any:
            return fun(*both[0], **both[1])

        mapping = {"mesh": where, "in_specs": (_EVERYWHERE,), "out_specs": _EVERYWHERE}
        if hasattr(jax, "shard_map"):
            return jax.shard_map(inner, check_vma=False, **mapping)((args, kwargs))
        from jax.experimental.shard_map import shard_map

        return shard_map(inner, check_rep=False, **mapping)((args, kwargs))

    return mapped


def _spread(leaf: Any, sharding: NamedSharding) -> Any:
    device = next(
        candidate
        for candidate in sharding.mesh.devices.flat
        if candidate.process_index == jax.process_index()
    )
    local = jax.device_put(leaf, device)
    return jax.make_array_from_single_device_arrays(local.shape, sharding, [local])


# Inside a program of ``spmd``.


def position() -> Any:
    """Return this rank as a value of the program; None outside such programs."""
    try:
        return jax.lax.axis_index(AXIS)
    except NameError:
        return None


def inside(call: Collective, arrays: Sequence[Any]) -> list[Any]:
    """Run ``call`` among the devices of the mesh. Raises ValueError if XLA has no such
    collective.
    """
    why = _unfit(call, arrays)
    if why:
        raise ValueError(f"{call}: {why} in a program of hvd.spmd. Use jax.jit for it")
    return [_one(call, array) for array in arrays]


def _unfit(call: Collective, arrays: Sequence[Any]) -> str:
    size, shapes = context.size(), [array.shape for array in arrays]
    if call.process_set is not WORLD:
        return "process sets are not supported"
    if call.kind is Kind.ALLREDUCE and call.op is ReduceOp.ADASUM:
        return "Adasum is not supported"
    if call.kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
        why = _inexact(call, [array.dtype for array in arrays])
        if why:
            return why
    if call.splits is not None or call.rows not in (
        None,
        tuple((shape[0],) * size for shape in shapes),
    ):
        return "ranks must have the same number of rows"
    if call.kind in (Kind.REDUCESCATTER, Kind.ALLTOALL, Kind.ALLGATHER) and not all(
        map(len, shapes)
    ):
        return "a scalar has no rows"
    if call.kind in (Kind.REDUCESCATTER, Kind.ALLTOALL) and any(
        shape[0] % size for shape in shapes
    ):
        return f"the number of rows must be a multiple of the number of ranks ({size})"
    return ""


def _inexact(call: Collective, dtypes: Sequence[Any]) -> str:
    """Return a reason if results would be inexact: XLA's floats have too few digits for multiples
    of integers.
    """
    scaled = (call.prescale, call.postscale) != (1.0, 1.0)
    if scaled and any(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes):
        return "integers cannot be multiplied by prescale_factor or postscale_factor"
    if (scaled or call.op is ReduceOp.AVERAGE) and any(
        jnp.issubdtype(dtype, jnp.bool_) for dtype in dtypes
    ):
        return (
            "averages and multiples of bool are not defined (use Min for all true, Max for any"
            " true)"
        )
    return ""


def _one(call: Collective, array: Any) -> Any:
    kind, lax = call.kind, jax.lax
    if kind is Kind.ALLGATHER:
        return lax.all_gather(array, AXIS, tiled=True)
    if kind is Kind.ALLTOALL:
        return lax.all_to_all(array, AXIS, 0, 0, tiled=True)
    if kind is Kind.BROADCAST:
        mine = jnp.where(lax.axis_index(AXIS) == call.root, array, jnp.zeros_like(array))
        return (
            lax.psum(mine.astype(jnp.int8), AXIS).astype(bool)
            if array.dtype == bool
            else lax.psum(mine, AXIS)
        )
    if kind is Kind.ALLREDUCE and call.op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
        scaled = array if call.prescale == 1.0 else (array * call.prescale).astype(array.dtype)
        return _scaled(_extreme(call.op, scaled), call.postscale, array.dtype)
    add = partial(
        lax.psum if kind is Kind.ALLREDUCE else partial(lax.psum_scatter, tiled=True),
        axis_name=AXIS,
    )
    if jnp.issubdtype(array.dtype, jnp.integer):
        return _whole_mean(array, add) if call.op is ReduceOp.AVERAGE else add(array)
    scale = call.prescale * call.postscale / (context.size() if call.op is ReduceOp.AVERAGE else 1)
    return _scaled(
        add(array.astype(jnp.promote_types(array.dtype, jnp.float32))), scale, array.dtype
    )


def _whole_mean(array: Any, add: Callable[[Any], Any]) -> Any:
    """Return the mean of integers, rounded toward zero. Quotients and remainders of the ranks are
    summed separately, because the sum may not fit into the dtype.
    """
    size = context.size()
    wide = array.astype(jnp.int32) if array.dtype.itemsize < 4 else array
    total = add(wide % size)
    mean = add(wide // size) + total // size  # rounded down
    return (mean + ((mean < 0) & (total % size != 0))).astype(array.dtype)


def _scaled(total: Any, scale: float, dtype: Any) -> Any:
    """Scale once, before rounding."""
    return (total if scale == 1.0 else total * scale).astype(dtype)


def _extreme(op: ReduceOp, array: Any) -> Any:
    """Reduce by Min, Max or Product."""
    every = jax.lax.all_gather(array, AXIS)
    if op is ReduceOp.MIN:
        return every.min(0)
    if op is ReduceOp.MAX:
        return every.max(0)
    return every.min(0) if array.dtype == bool else every.prod(0).astype(array.dtype)


# Outside programs.


def now(call: Collective, arrays: Sequence[Any]) -> list[Any] | None:
    """Return the results of ``call``. None, on all ranks, if the ranks' calls differ or XLA does
    not support them: the host then runs the call, or reports the error.
    """
    facts = (call.kind, call.op, call.prescale, call.postscale, call.root, call.grouped)
    unfit = _unfit(call, arrays)
    summary = repr((facts, unfit, [(a.shape, str(a.dtype)) for a in arrays]))
    number = int.from_bytes(hashlib.sha256(summary.encode()).digest()[:7], "big")
    words = np.array([number, -number], dtype=np.int64)
    engine = context.engine(call.process_set)
    request = Request(
        f"native.{call.name or 'noname'}", Kind.ALLREDUCE, DType.INT64, (2,), ReduceOp.MIN
    )
    serial = 0 if call.name else engine.numbers.next()
    engine.run([Entry(request, Buffer(words, words, DType.INT64), serial)])
    if words[0] != -words[1] or unfit:
        return None
    found: list[Any] = _program(replace(call, name=None, place=None))(list(arrays))
    return found


@functools.lru_cache(maxsize=256)
def _program(call: Collective) -> Callable[..., Any]:
    return spmd(lambda arrays: inside(call, arrays))
