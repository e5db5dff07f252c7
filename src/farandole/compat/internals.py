"""Private functions of ``horovod.tensorflow`` that programs call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.tensorflow import (
    allreduce,
    broadcast_variables,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from farandole.tensorflow.sparse import is_slices, tensor_of


def sum_of(
    tensor: Any,
    name: str | None = None,
    op: int = ReduceOp.SUM,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Implement ``_allreduce``, whose default is the sum."""
    return allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def sums_of(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = ReduceOp.SUM,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = WORLD,
) -> list[Any]:
    """Implement ``_grouped_allreduce``."""
    return grouped_allreduce(
        tensors,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def part_of_sum(
    tensor: Any, name: str | None = None, op: int = ReduceOp.SUM, **options: Any
) -> Any:
    """Implement ``_reducescatter``."""
    return reducescatter(tensor, op=op, name=name, **options)


def parts_of_sums(
    tensors: Sequence[Any], name: str | None = None, op: int = ReduceOp.SUM, **options: Any
) -> list[Any]:
    """Implement ``_grouped_reducescatter``."""
    return grouped_reducescatter(tensors, op=op, name=name, **options)


def make_allreduce_grads(
    name: str,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    process_set: ProcessSet = WORLD,
) -> Callable[..., list[Any]]:
    """Return a function that reduces a list of gradients: ``_make_allreduce_grads_fn``.

    It serves optimizers that programs derive themselves. All gradients are reduced together,
    regardless of ``groups``.
    """
    factors: dict[str, Any] = {}
    if gradient_predivide_factor != 1.0:
        factors = {
            "prescale_factor": 1 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
        }

    def allreduce_grads(
        grads: Sequence[Any], vars: Sequence[Any] = (), use_generic_names: bool = False
    ) -> list[Any]:
        gradients = [
            tensor_of(each) if sparse_as_dense and is_slices(each) else each for each in grads
        ]
        return grouped_allreduce(
            gradients, compression=compression, op=op, process_set=process_set, **factors
        )

    return allreduce_grads


def make_broadcast_group() -> Callable[..., Any]:
    """Implement ``_make_broadcast_group_fn``."""
    return broadcast_variables
