"""Differentiable collectives.

Gradients are those with respect to the sum of all ranks' losses. The exceptions follow Horovod, for
equal results in its programs: gradients of allgather and broadcast are averaged over the ranks, and
gradients of reducescatter are not divided (docs/torch.md).
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from farandole.base.types import ReduceOp
from farandole.core.api.compression import Compressing, NoneCompressor
from farandole.core.api.documented import like
from farandole.core.api.gather import gather_by
from farandole.core.api.ops import WORLD, reduce_op
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.torch import functions

_recording = torch.is_grad_enabled

# The linear part of every gradient. Arguments: tensors, op, prescale, postscale, suffix of the
# name.
Reduce = Callable[[Sequence[Any], ReduceOp, float, float, str], list[Any]]


@like(functions.allreduce)
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> torch.Tensor:
    """Reduce every rank's ``tensor`` to a new tensor. ``op``: Average (the default), Sum, Min,
    ...
    """
    if not (getattr(tensor, "requires_grad", False) and _recording()):
        return functions.allreduce(
            tensor, average, name, compression, op, prescale_factor, postscale_factor, process_set
        )

    def reduce(
        tensors: Sequence[Any], op: ReduceOp, pre: float, post: float, suffix: str
    ) -> list[Any]:
        return [
            allreduce(
                tensors[0], None, _named(name, suffix), NoneCompressor, op, pre, post, process_set
            )
        ]

    small, token = compression.compress(tensor)
    (total,) = _reduced(reduce, reduce_op(average, op), prescale_factor, postscale_factor, (small,))
    return compression.decompress(total, token)


@like(functions.grouped_allreduce)
def grouped_allreduce(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> list[torch.Tensor]:
    """Reduce several tensors as one unit; see ``allreduce``."""
    tensors = list(tensors)
    if not _tracked(*tensors):
        return functions.grouped_allreduce(
            tensors, average, name, compression, op, prescale_factor, postscale_factor, process_set
        )

    def reduce(
        tensors: Sequence[Any], op: ReduceOp, pre: float, post: float, suffix: str
    ) -> list[Any]:
        return grouped_allreduce(
            tensors, None, _named(name, suffix), NoneCompressor, op, pre, post, process_set
        )

    pairs = [compression.compress(tensor) for tensor in tensors]
    small = tuple(tensor for tensor, _ in pairs)
    totals = _reduced(reduce, reduce_op(average, op), prescale_factor, postscale_factor, small)
    return [
        compression.decompress(total, token)
        for total, (_, token) in zip(totals, pairs, strict=True)
    ]


@like(functions.allgather)
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = WORLD
) -> torch.Tensor:
    """Concatenate every rank's ``tensor`` in rank order, as a new tensor. The first dimension may
    differ between ranks.
    """
    if not (getattr(tensor, "requires_grad", False) and _recording()):
        return functions.allgather(tensor, name, process_set)
    return _Allgather.apply(name, process_set, False, tensor)[0]


@like(functions.grouped_allgather)
def grouped_allgather(
    tensors: Iterable[torch.Tensor], name: str | None = None, process_set: ProcessSet = WORLD
) -> list[torch.Tensor]:
    """Gather several tensors as one unit; see ``allgather``."""
    tensors = list(tensors)
    if not _tracked(*tensors):
        return list(functions.grouped_allgather(tensors, name, process_set))
    return list(_Allgather.apply(name, process_set, True, *tensors))


@like(functions.broadcast)
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> torch.Tensor:
    """Return ``root_rank``'s ``tensor`` as a new tensor on every rank."""
    if not (getattr(tensor, "requires_grad", False) and _recording()):
        return functions.broadcast(tensor, root_rank, name, process_set)
    return _Broadcast.apply(tensor, root_rank, name, process_set)


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
) -> torch.Tensor: ...
@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = WORLD,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@like(functions.alltoall)
def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Distribute the rows of ``tensor``: the first ``splits[0]`` to rank 0 and so on (evenly
    without ``splits``).
    """
    if not (getattr(tensor, "requires_grad", False) and _recording()):
        return functions.alltoall(tensor, splits, name, process_set)
    size = context.engine(process_set).size
    # otherwise the engine reports the error
    if splits is None and tensor.dim() and not len(tensor) % size:
        both = _Alltoall.apply(tensor, torch.full((size,), len(tensor) // size), name, process_set)
        return both[0]
    return _Alltoall.apply(tensor, splits, name, process_set)


gather = gather_by(alltoall)


@like(functions.reducescatter)
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's rows of the reduction. If the rows do not divide evenly, the first ranks
    get one more each.
    """
    if not (getattr(tensor, "requires_grad", False) and _recording()):
        return functions.reducescatter(
            tensor, name, compression, op, process_set, prescale_factor, postscale_factor
        )
    small, token = compression.compress(tensor)
    (part,) = _Reducescatter.apply(
        name, op, process_set, (prescale_factor, postscale_factor), False, small
    )
    return compression.decompress(part, token)


@like(functions.grouped_reducescatter)
def grouped_reducescatter(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    compression: Compressing = NoneCompressor,
    op: int | None = None,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter several tensors as one unit; see ``reducescatter``."""
    tensors = list(tensors)
    if not _tracked(*tensors):
        return functions.grouped_reducescatter(
            tensors, name, compression, op, process_set, prescale_factor, postscale_factor
        )
    pairs = [compression.compress(tensor) for tensor in tensors]
    small = [tensor for tensor, _ in pairs]
    parts = _Reducescatter.apply(
        name, op, process_set, (prescale_factor, postscale_factor), True, *small
    )
    return [
        compression.decompress(part, token) for part, (_, token) in zip(parts, pairs, strict=True)
    ]


def _tracked(*tensors: Any) -> bool:
    return _recording() and any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def _named(name: str | None, suffix: str) -> str | None:
    return None if name is None else name + suffix


def _reduced(
    reduce: Reduce, op: ReduceOp, pre: float, post: float, tensors: tuple[Any, ...]
) -> tuple[Any, ...]:
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        if pre < 0:  # a negative factor reverses the order
            op = ReduceOp.MAX if op is ReduceOp.MIN else ReduceOp.MIN
        found: tuple[Any, ...] = _Extremum.apply(reduce, op, *tensors)
        return found if pre * post == 1.0 else tuple(tensor * (pre * post) for tensor in found)
    function = _Product if op is ReduceOp.PRODUCT else _Linear
    reduced: tuple[Any, ...] = function.apply(reduce, op, pre, post, *tensors)
    return reduced


class _Linear(Function):  # type: ignore[misc]  # torch has no types for it
    """Sums and averages, and Adasum as in Horovod: the gradient is reduced with the same
    operation.
    """

    @staticmethod
    def forward(
        ctx: Any, reduce: Reduce, op: ReduceOp, pre: float, post: float, *tensors: Any
    ) -> Any:
        ctx.how = reduce, op, pre, post
        return tuple(reduce(tensors, op, pre, post, ""))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduce, *how = ctx.how
        return None, None, None, None, *reduce(gradients, *how, ".gradient")


class _Extremum(Function):  # type: ignore[misc]  # torch has no types for it
    """Minimum and maximum: the gradient goes to the rank that has the extremum, in equal parts if
    several have it.
    """

    @staticmethod
    def forward(ctx: Any, reduce: Reduce, op: ReduceOp, *tensors: Any) -> Any:
        found = reduce(tensors, op, 1.0, 1.0, "")
        # A NaN on any rank is the extremum, and equals nothing.
        from_here = [
            (tensor == extremum) | tensor.isnan()
            for tensor, extremum in zip(tensors, found, strict=True)
        ]
        ctx.reduce = reduce
        ctx.save_for_backward(*from_here)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        masks = [mask.to(torch.float32) for mask in ctx.saved_tensors]
        ranks = ctx.reduce(masks, ReduceOp.SUM, 1.0, 1.0, ".ties")
        totals = ctx.reduce(gradients, ReduceOp.SUM, 1.0, 1.0, ".gradient")
        parts = zip(totals, masks, ranks, strict=True)
        return (
            None,
            None,
            *(total * (mask / count.clamp(min=1)).to(total.dtype) for total, mask, count in parts),
        )


class _Product(Function):  # type: ignore[misc]  # torch has no types for it
    """Products: the gradient of a factor is the product of the others."""

    @staticmethod
    def forward(
        ctx: Any, reduce: Reduce, op: ReduceOp, pre: float, post: float, *tensors: Any
    ) -> Any:
        ctx.how = reduce, pre, post
        ctx.save_for_backward(*tensors)
        return tuple(reduce(tensors, op, pre, post, ""))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduce, pre, post = ctx.how
        tensors = ctx.saved_tensors
        zeros = [(tensor == 0).to(tensor.dtype) for tensor in tensors]
        counts = reduce(zeros, ReduceOp.SUM, 1.0, 1.0, ".zeros")
        # zeros are replaced by ones
        factors = [tensor + zero for tensor, zero in zip(tensors, zeros, strict=True)]
        products = reduce(factors, ReduceOp.PRODUCT, pre, post, ".product")
        totals = reduce(gradients, ReduceOp.SUM, 1.0, 1.0, ".gradient")
        others = [
            # nonzero only where no other rank has a zero
            torch.where(count == zero, product / factor, torch.zeros_like(product))
            for count, zero, product, factor in zip(counts, zeros, products, factors, strict=True)
        ]
        return (
            None,
            None,
            None,
            None,
            *(total * other for total, other in zip(totals, others, strict=True)),
        )


class _Allgather(Function):  # type: ignore[misc]  # torch has no types for it
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, grouped: bool, *tensors: Any
    ) -> Any:
        ctx.how = name, process_set, grouped
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        if grouped:
            return tuple(functions.grouped_allgather(tensors, name, process_set))
        return (functions.allgather(tensors[0], name, process_set),)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        name, process_set, grouped = ctx.how
        some = {"name": _named(name, ".gradient"), "process_set": process_set}
        means = (
            grouped_allreduce(gradients, **some) if grouped else [allreduce(gradients[0], **some)]
        )
        every = functions.allgather(
            torch.tensor([ctx.rows], device="cpu"), _named(name, ".rows"), process_set
        )
        firsts = every[: context.engine(process_set).rank].sum(0).tolist()
        rows = zip(means, firsts, ctx.rows, strict=True)
        return None, None, None, *(mean[first : first + count] for mean, first, count in rows)


class _Broadcast(Function):  # type: ignore[misc]  # torch has no types for it
    @staticmethod
    def forward(ctx: Any, tensor: Any, root: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.how = root, name, process_set
        return functions.broadcast(tensor, root, name, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        root, name, process_set = ctx.how
        mean = allreduce(gradient, name=_named(name, ".gradient"), process_set=process_set)
        return mean if context.rank() == root else torch.zeros_like(mean), None, None, None


class _Alltoall(Function):  # type: ignore[misc]  # torch has no types for it
    @staticmethod
    def forward(
        ctx: Any, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        both = functions.alltoall(tensor, splits, name, process_set)
        if splits is None:
            return both
        ctx.how = both[1], name, process_set
        ctx.mark_non_differentiable(both[1])
        return both

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any = None) -> Any:
        received, name, process_set = ctx.how
        return (
            alltoall(gradient, received, _named(name, ".gradient"), process_set)[0],
            None,
            None,
            None,
        )


class _Reducescatter(Function):  # type: ignore[misc]  # torch has no types for it
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int | None,
        process_set: ProcessSet,
        factors: tuple[float, float],
        grouped: bool,
        *tensors: Any,
    ) -> Any:
        ctx.how = name, op, process_set, factors, grouped
        some = (op, process_set, *factors)
        if grouped:
            return tuple(functions.grouped_reducescatter(tensors, name, NoneCompressor, *some))
        return (functions.reducescatter(tensors[0], name, NoneCompressor, *some),)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        name, op, process_set, (pre, post), grouped = ctx.how
        factor = (
            pre
            * post
            * (context.engine(process_set).size if reduce_op(None, op) is ReduceOp.SUM else 1)
        )
        gradients = tuple(gradient * factor for gradient in gradients) if factor != 1 else gradients
        some = (_named(name, ".gradient"), process_set)
        whole = grouped_allgather(gradients, *some) if grouped else [allgather(gradients[0], *some)]
        return None, None, None, None, None, *whole
