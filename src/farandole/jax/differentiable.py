"""Gradients of the collectives.

Gradients are those with respect to the sum of all ranks' losses. The exceptions follow Horovod:
gradients of allgather and broadcast are averaged over the ranks, and gradients of reducescatter are
not divided (docs/jax.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farandole.base.types import Kind, ReduceOp
from farandole.core.api.ops import INT32_MAX
from farandole.core.kernels import shares
from farandole.jax import native
from farandole.jax.calls import Collective
from farandole.jax.primitive import host_call, wait
from farandole.job import context

Arrays = tuple[Any, ...]
Gradients = list[Any]  # None for values without a gradient


def apply(call: Collective, arrays: Sequence[Any]) -> list[Any]:
    """Return the outputs of ``call``, differentiably."""
    if not arrays:
        return []
    call = call.placed()
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return collective(call, arrays)
    if call.kind is Kind.ALLREDUCE and call.op in (ReduceOp.MIN, ReduceOp.MAX):
        return _extrema(call, arrays)
    if call.kind is Kind.ALLREDUCE and call.op is ReduceOp.PRODUCT:
        return list(_product(call, tuple(arrays)))
    return list(_linear(call, tuple(arrays)))


def collective(call: Collective, arrays: Sequence[Any]) -> list[Any]:
    """Return the outputs of ``call``, by JAX's own collectives if possible, else over the host."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return host_call(call, arrays) if native.position() is None else native.inside(call, arrays)
    if native.active():
        wait()
        found = native.now(call, arrays)
        if found is not None:
            return found
    return host_call(call, arrays)


def _sum(call: Collective, arrays: Sequence[Any], suffix: str) -> list[Any]:
    return apply(call.renamed(suffix, op=ReduceOp.SUM, prescale=1.0, postscale=1.0), arrays)


def _continuous(gradients: Sequence[Any]) -> list[int]:
    """Return the places of the gradients that are numbers; gradients of integers are not."""
    return [
        place for place, gradient in enumerate(gradients) if gradient.dtype != jax.dtypes.float0
    ]


def _filled(count: int, places: Sequence[int], values: Sequence[Any]) -> tuple[Arrays]:
    gradients: Gradients = [None] * count
    for place, value in zip(places, values, strict=True):
        gradients[place] = value
    return (tuple(gradients),)


# Linear collectives: sums, averages, and all that only move data. Adasum's gradient is reduced by
# Adasum, as in Horovod.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _linear(call: Collective, arrays: Arrays) -> Arrays:
    return tuple(collective(call, arrays))


def _linear_forward(call: Collective, arrays: Arrays) -> tuple[Arrays, Any]:
    dealt = _evenly(call, arrays)
    outputs = _linear(dealt, arrays)
    # shapes are static, values would not be
    rows = [jnp.empty((*array.shape[:1], 0)) for array in arrays]
    return outputs[: None if call.splits is not None else len(arrays)], (
        rows,
        outputs[1] if dealt.splits is not None else None,
    )


def _evenly(call: Collective, arrays: Arrays) -> Collective:
    """Return ``call``, with explicit splits for an alltoall outside ``jit``: its gradient returns
    by the received splits, which differ if ranks have different numbers of rows.
    """
    if (
        call.kind is not Kind.ALLTOALL
        or call.splits is not None
        or isinstance(arrays[0], jax.core.Tracer)
    ):
        return call
    size = context.engine(call.process_set).size
    if not arrays[0].ndim or len(arrays[0]) % size:
        return call  # the engine reports the error
    rows = len(arrays[0]) // size
    return call if rows > INT32_MAX else replace(call, splits=(rows,) * size)


def _linear_backward(call: Collective, kept: Any, gradients: Arrays) -> tuple[Arrays]:
    rows, received = kept
    if call.splits is not None:
        gradients = gradients[:1]
    places = _continuous(gradients)
    some = [gradients[place] for place in places]
    if not some:
        return _filled(len(rows), [], [])
    backward = call.renamed(".gradient")
    if call.kind is Kind.ALLREDUCE:
        values = apply(backward, some)
    elif call.kind is Kind.ALLTOALL:
        splits = None if received is None else splits_of(received)
        values = apply(backward.renamed("", splits=splits), some)[:1]
    elif call.kind is Kind.REDUCESCATTER:
        values = _scattered_backward(call, [rows[place].shape[0] for place in places], some)
    else:
        means = apply(
            backward.renamed("", kind=Kind.ALLREDUCE, op=ReduceOp.AVERAGE, rows=None), some
        )
        if call.kind is Kind.BROADCAST:
            here = context.rank() if native.position() is None else native.position()
            values = [jnp.where(here == call.root, mean, jnp.zeros_like(mean)) for mean in means]
        else:
            values = _own_rows(call, [rows[place].shape[0] for place in places], places, means)
    return _filled(len(rows), places, values)


_linear.defvjp(_linear_forward, _linear_backward)


def _scattered_backward(
    call: Collective, rows: Sequence[int], gradients: Sequence[Any]
) -> list[Any]:
    size = context.engine(call.process_set).size
    factor = call.prescale * call.postscale * (size if call.op is ReduceOp.SUM else 1)
    scaled = [
        (gradient * factor).astype(gradient.dtype) if factor != 1 else gradient
        for gradient in gradients
    ]
    every = tuple(tuple(shares(count, size)) for count in rows)
    return apply(call.renamed(".gradient", kind=Kind.ALLGATHER, rows=every), scaled)


def _own_rows(
    call: Collective, rows: Sequence[int], places: Sequence[int], means: Sequence[Any]
) -> list[Any]:
    """Return this rank's rows of the gathered gradient."""
    engine, here = context.engine(call.process_set), native.position()
    if here is not None:
        return [
            jax.lax.dynamic_slice_in_dim(mean, here * count, count)
            for mean, count in zip(means, rows, strict=True)
        ]
    if isinstance(means[0], jax.core.Tracer):
        every = (
            call.expected([(count,) for count in rows])
            if call.rows is None
            else [call.rows[i] for i in places]
        )
    else:
        row_call = call.renamed(".rows", rows=None, grouped=False)
        # as int32, because JAX may have no int64
        (table,) = collective(row_call, [jnp.asarray(np.array([rows], np.int64).view(np.int32))])
        every = [tuple(column) for column in np.asarray(table).view(np.int64).T.tolist()]
    firsts = [sum(counts[: engine.rank]) for counts in every]
    return [
        mean[first : first + count] for mean, first, count in zip(means, firsts, rows, strict=True)
    ]


# Extrema: the gradient goes to the rank that has the extremum, in equal parts if several have it.


def _extrema(call: Collective, arrays: Sequence[Any]) -> list[Any]:
    op, scale = call.op, call.prescale * call.postscale
    floats = [jnp.issubdtype(array.dtype, jnp.floating) for array in arrays]
    if (call.prescale, call.postscale) != (1.0, 1.0) and not all(floats):
        # Multiples of integers are truncated on the way, and have no gradients.
        found = iter(
            _linear(
                call,
                tuple(
                    array for array, is_float in zip(arrays, floats, strict=True) if not is_float
                ),
            )
        )
        some = [array for array, is_float in zip(arrays, floats, strict=True) if is_float]
        others = iter(_extrema(call.renamed(".floats"), some) if some else ())
        return [next(others if is_float else found) for is_float in floats]
    if call.prescale < 0:  # a negative factor reverses the order
        op = ReduceOp.MAX if op is ReduceOp.MIN else ReduceOp.MIN
    extrema = _extremum(call.renamed("", op=op, prescale=1.0, postscale=1.0), tuple(arrays))
    return [array if scale == 1.0 else (array * scale).astype(array.dtype) for array in extrema]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _extremum(call: Collective, arrays: Arrays) -> Arrays:
    return tuple(collective(call, arrays))


def _extremum_forward(call: Collective, arrays: Arrays) -> tuple[Arrays, Any]:
    found = _extremum(call, arrays)
    # A NaN on any rank is the extremum, and equals nothing.
    masks = [(array == best) | (array != array) for array, best in zip(arrays, found, strict=True)]
    return found, masks


def _extremum_backward(call: Collective, masks: Any, gradients: Arrays) -> tuple[Arrays]:
    places = _continuous(gradients)
    if not places:
        return _filled(len(gradients), [], [])
    mine = [masks[place].astype(jnp.float32) for place in places]
    ranks = _sum(call, mine, ".ties")
    totals = _sum(call, [gradients[place] for place in places], ".gradient")
    values = [
        total * (mask / jnp.maximum(count, 1)).astype(total.dtype)
        for total, mask, count in zip(totals, mine, ranks, strict=True)
    ]
    return _filled(len(gradients), places, values)


_extremum.defvjp(_extremum_forward, _extremum_backward)


# Products: the gradient of a factor is the product of the others.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(call: Collective, arrays: Arrays) -> Arrays:
    return tuple(collective(call, arrays))


def _product_forward(call: Collective, arrays: Arrays) -> tuple[Arrays, Any]:
    return _product(call, arrays), arrays


def _product_backward(call: Collective, arrays: Arrays, gradients: Arrays) -> tuple[Arrays]:
    places = _continuous(gradients)
    if not places:
        return _filled(len(gradients), [], [])
    mine = [arrays[place] for place in places]
    zeros = [(array == 0).astype(array.dtype) for array in mine]
    counts = _sum(call, zeros, ".zeros")
    factors = [
        array + zero for array, zero in zip(mine, zeros, strict=True)
    ]  # zeros are replaced by ones
    products = apply(call.renamed(".product"), factors)
    totals = _sum(call, [gradients[place] for place in places], ".gradient")
    others = [
        jnp.where(count == zero, product / factor, 0)  # nonzero only where no other rank has a zero
        for count, zero, product, factor in zip(counts, zeros, products, factors, strict=True)
    ]
    return _filled(
        len(gradients), places, [total * other for total, other in zip(totals, others, strict=True)]
    )


_product.defvjp(_product_forward, _product_backward)


def splits_of(splits: Any) -> tuple[int, ...]:
    """Return the splits of an alltoall as numbers. Raises ValueError for traced values: the shapes
    of a program are fixed before it runs.
    """
    if isinstance(splits, jax.core.Tracer):
        raise ValueError(
            "alltoall: splits must be numbers, not values of a jitted program. Call it outside of"
            " jit"
        )
    values = np.asarray(splits)
    if values.ndim != 1:
        raise ValueError(f"alltoall expects a 1D splits tensor (got {values.ndim} dimensions)")
    return tuple(values.tolist())
