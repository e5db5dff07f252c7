"""Differentiable allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.base.types import ReduceOp
from farandole.job.context import ProcessSet
from farandole.tensorflow import functions
from farandole.tensorflow.functions import Names


def reduced(
    tensors: Sequence[Any],
    op: ReduceOp,
    pre: float,
    post: float,
    names: Names,
    process_set: ProcessSet,
    grouped: bool,
) -> list[Any]:
    """Return differentiable reductions of ``tensors``, with ``grouped`` as a unit."""
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        floats = [tensor.dtype.is_floating for tensor in tensors]
        # integers have no gradients, and cannot hold the factor
        if pre * post != 1.0 and not all(floats):
            if any(floats):
                one_by_one = zip(
                    tensors,
                    map(names.and_, (f"_{place}" for place in range(len(tensors)))),
                    strict=True,
                )
                return [
                    reduced([each], op, pre, post, its, process_set, False)[0]
                    for each, its in one_by_one
                ]
            return functions.reduce(tensors, op, pre, post, names, process_set, grouped)
        if pre < 0:  # a negative factor reverses the order
            op = ReduceOp.MAX if op is ReduceOp.MIN else ReduceOp.MIN
        found = _extremum(tensors, op, names, process_set, grouped)
        return found if pre * post == 1.0 else [tensor * (pre * post) for tensor in found]
    make = _product if op is ReduceOp.PRODUCT else _linear
    return make(tensors, op, pre, post, names, process_set, grouped)


def dense(gradients: Sequence[Any]) -> list[Any]:
    """Return dense gradients. Gathering rows of a result yields tf.IndexedSlices."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _linear(
    tensors: Sequence[Any],
    op: ReduceOp,
    pre: float,
    post: float,
    names: Names,
    process_set: ProcessSet,
    grouped: bool,
) -> list[Any]:
    """Return sums, averages or Adasum's results. Their gradients are reduced in the same way, for
    Adasum as in Horovod.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            return _linear(
                dense(upstream), op, pre, post, names.and_("_gradient"), process_set, grouped
            )

        return functions.reduce(tensors, op, pre, post, names, process_set, grouped), gradient

    return list(reduce(*tensors))


def _extremum(
    tensors: Sequence[Any], op: ReduceOp, names: Names, process_set: ProcessSet, grouped: bool
) -> list[Any]:
    """Return the minimum or maximum. Its gradient goes to the rank with that value, or in equal
    parts to several.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> Any:
        found = functions.reduce(tensors, op, 1.0, 1.0, names, process_set, grouped)

        def gradient(*upstream: Any) -> Any:
            # a NaN on any rank is the result, and does not equal itself
            from_here = [
                tf.logical_or(tf.equal(mine, best), tf.not_equal(mine, mine))
                for mine, best in zip(tensors, found, strict=True)
            ]
            masks = [tf.cast(mask, tf.float32) for mask in from_here]
            ranks = _linear(
                masks, ReduceOp.SUM, 1.0, 1.0, names.and_("_ties"), process_set, grouped
            )
            totals = _linear(
                dense(upstream),
                ReduceOp.SUM,
                1.0,
                1.0,
                names.and_("_gradient"),
                process_set,
                grouped,
            )
            return [
                total * tf.cast(mask, total.dtype) / tf.cast(tf.maximum(count, 1.0), total.dtype)
                for total, mask, count in zip(totals, masks, ranks, strict=True)
            ]

        return found, gradient

    return list(reduce(*tensors))


def _product(
    tensors: Sequence[Any],
    op: ReduceOp,
    pre: float,
    post: float,
    names: Names,
    process_set: ProcessSet,
    grouped: bool,
) -> list[Any]:
    """Return the product. The derivative by a factor is the product of the others."""

    def sums(values: Sequence[Any], suffix: str) -> list[Any]:
        return _linear(values, ReduceOp.SUM, 1.0, 1.0, names.and_(suffix), process_set, grouped)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            zeros = [tf.cast(tf.equal(tensor, 0), tensor.dtype) for tensor in tensors]
            counts = sums(zeros, "_zeros")
            # zeros are replaced by ones
            factors = [tensor + zero for tensor, zero in zip(tensors, zeros, strict=True)]
            products = functions.reduce(
                factors, op, pre, post, names.and_("_product"), process_set, grouped
            )
            totals = sums(dense(upstream), "_gradient")
            others = [
                # nonzero only if no other rank has a zero
                tf.where(tf.equal(count, zero), product / factor, tf.zeros_like(product))
                for count, zero, product, factor in zip(
                    counts, zeros, products, factors, strict=True
                )
            ]
            return [total * other for total, other in zip(totals, others, strict=True)]

        return functions.reduce(tensors, op, pre, post, names, process_set, grouped), gradient

    return list(reduce(*tensors))
