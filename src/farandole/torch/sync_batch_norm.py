"""SyncBatchNorm: batch normalization over the batches of all ranks."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.base.types import ReduceOp
from farandole.core.api.batch_norm import combined
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.torch.functions import allgather, allreduce

Module = TypeVar("Module", bound=torch.nn.Module)


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]  # torch has no types for it
    """Batch normalization over the batches of all ranks, in place of BatchNorm1d, 2d and 3d.
    Batches may differ in size between ranks, or be empty.

    ``num_features``: channels, dimension 1 of inputs of shape (N, C, ...). ``eps``: added to the
    variance. ``momentum``: the weight of a batch in running statistics; None for their mean.
    ``affine``: with a learned weight and bias. ``track_running_stats``: keep statistics for
    ``eval()``. ``device`` and ``dtype``: for the parameters. ``process_set``: the ranks whose
    batches count; all by default.

    Statistics are computed in double precision, on the device of the input.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        process_set: ProcessSet = WORLD,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_set = process_set

    def __deepcopy__(self, memo: Any) -> SyncBatchNorm:
        """Copy the module for the same process set, which compares by identity."""
        memo[id(self.process_set)] = self.process_set
        made: SyncBatchNorm = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made

    def _check_input_dim(self, input: Any) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"expected at least 2D input (got {input.dim()}D input of shape"
                f" {tuple(input.shape)}). Pass a batch of samples with channels, of shape (N, C,"
                " ...)"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training or context.engine(self.process_set).size == 1:
            return super().forward(input)
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"expected an input with {self.num_features} channels (got {input.shape[1]}, in"
                f" dimension 1 of shape {tuple(input.shape)}). Create SyncBatchNorm with"
                f" num_features={input.shape[1]}"
            )
        output, count, mean, variance = _Normalize.apply(
            input, self.weight, self.bias, self.eps, self.process_set
        )
        if (
            self.track_running_stats
            and self.running_mean is not None
            and self.running_var is not None
        ):
            self._follow(float(count), mean, variance)
        return output

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _follow(self, count: float, mean: Any, variance: Any) -> None:
        """Update the running statistics, with the unbiased variance as in torch."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if not count:
            return
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1, 1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.mul_(1 - share).add_(value.to(running.dtype), alpha=share)


class _Normalize(Function):  # type: ignore[misc]  # torch has no types for it
    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, eps: float, process_set: ProcessSet
    ) -> Any:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x.double()
        count = x.numel() // x.shape[1]
        own = wide.mean(axes) if count else wide.new_zeros(x.shape[1])
        squares = (wide - _shaped(own, x)).square().sum(axes)
        row = torch.cat([wide.new_tensor([count]), own, squares])[None]
        moments = combined(allgather(row, process_set=process_set).cpu().numpy())
        mean, variance = (
            torch.from_numpy(np.ascontiguousarray(moment)).to(x.device) for moment in moments[1:]
        )
        inverse = torch.rsqrt(variance + eps)
        normal = (wide - _shaped(mean, x)) * _shaped(inverse, x)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.count, ctx.set = moments.total, process_set
        ctx.has_bias = bias is not None
        output = normal if weight is None else normal * _shaped(weight.double(), x)
        if bias is not None:
            output = output + _shaped(bias.double(), x)
        total = torch.tensor(moments.total, device="cpu")
        ctx.mark_non_differentiable(total, mean, variance)
        return output.to(x.dtype), total, mean, variance

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = gradient.double()
        normal = (x.double() - _shaped(mean, x)) * _shaped(inverse, x)
        sums = torch.stack([wide.sum(axes), (wide * normal).sum(axes)])
        of_weight = (
            sums[1].to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        )
        of_bias = (
            sums[0].to(gradient.dtype if weight is None else weight.dtype)
            if ctx.needs_input_grad[2]
            else None
        )
        # Each rank's own weight: with strategies that exchange weights, it differs between
        # exchanges.
        if weight is not None:
            wide, sums = wide * _shaped(weight.double(), x), sums * weight.double()
        # Unconditional: another rank may need its input's gradient where this one does not.
        means = allreduce(sums, op=ReduceOp.SUM, process_set=ctx.set) / max(ctx.count, 1.0)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, None, None
        of_x = (wide - _shaped(means[0], x) - normal * _shaped(means[1], x)) * _shaped(inverse, x)
        return of_x.to(x.dtype), of_weight, of_bias, None, None


def _shaped(values: Any, like: Any) -> Any:
    """Return a value per channel in a shape that broadcasts to ``like``."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


@documented(
    example="model = hvd.convert_sync_batchnorm(model)",
    module="a torch.nn.Module, whose submodules are replaced in place.",
)
def convert_sync_batchnorm(module: Module, process_set: ProcessSet = WORLD) -> Module:
    """Return ``module`` with each BatchNorm replaced by a SyncBatchNorm of the same parameters and
    statistics.

    A layer with several names, or in several modules, stays one layer.
    """
    return _converted(module, process_set, {})


def _converted(module: Module, process_set: ProcessSet, known: dict[Module, Module]) -> Module:
    """Convert a module. ``known``: the modules seen so far, and their replacements."""
    if module in known:
        return known[module]
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        made = SyncBatchNorm(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            process_set=process_set,
        )
        for name in ("weight", "bias"):
            setattr(made, name, getattr(module, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(module, name))
        made.train(module.training)
        known[module] = made
        return made
    known[module] = module
    # ``named_children`` yields a child with two names only once.
    for name, child in list(module._modules.items()):
        converted = child if child is None else _converted(child, process_set, known)
        if converted is not child:
            setattr(module, name, converted)
    return module
