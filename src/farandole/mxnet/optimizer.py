"""DistributedOptimizer: any MXNet optimizer, updating with the gradients of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import mxnet as mx

from farandole.base.exchange_names import LISTS, exchange_name
from farandole.base.types import ReduceOp
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.mxnet.functions import allreduce_, grouped_allreduce_
from farandole.mxnet.parameter_names import canonical
from farandole.mxnet.sparse import reduce_rows
from farandole.strategies.options import GradientOptions, gradient_options


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]  # mxnet has no types
    """An optimizer that averages gradients over all ranks before ``optimizer`` updates.

    For ``Module.fit`` and for ``gluon.Trainer``; with gluon, ``DistributedTrainer`` is faster. All
    attributes are ``optimizer``'s. Gradients are summed, so its ``rescale_grad`` is divided by the
    number of ranks.

    ``gradient_predivide_factor``: divide by it before summing, and by size / factor afterwards.
    ``num_groups``: the number of units in which gradients that are updated together are exchanged.
    ``process_set``: the ranks whose gradients are averaged; on a rank outside it, the optimizer
    updates with its own.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = WORLD,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError(
                "this optimizer is already distributed. Pass the optimizer that it wraps"
            )
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            made = (
                f"mx.optimizer.create({optimizer!r})"
                if isinstance(optimizer, str)
                else "mx.optimizer.create(...)"
            )
            raise TypeError(
                f"an mxnet Optimizer is needed, not {type(optimizer).__name__}: {made}. (For a"
                " gluon.Trainer: hvd.DistributedTrainer(params, optimizer))"
            )
        options = gradient_options(
            gradient_predivide_factor=gradient_predivide_factor,
            process_set=process_set,
            instead="DistributedTrainer",
        )
        active = process_set.included() and process_set.size() > 1
        mine = _OptimizerState(
            optimizer,
            options,
            num_groups,
            active,
            gradient_predivide_factor / process_set.size() if active else 1.0,
            exchange_name(LISTS, context.engine().numbers.next_optimizer()),
            {},
        )
        object.__setattr__(self, "_mine", mine)
        optimizer.rescale_grad *= mine.factor

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_mine").optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._mine.optimizer, name, value)

    def __reduce__(self) -> Any:
        mine = self._mine
        process_set = mine.options.process_set
        process_set = None if process_set is WORLD else process_set
        rest = (
            mine.options.postscale,
            mine.num_groups,
            process_set,
            mine.optimizer.rescale_grad / mine.factor,
        )
        return _restored, (mine.optimizer, *rest)

    def unwrapped(self) -> Any:
        """Return the original optimizer, with its original settings."""
        mine = self._mine
        mine.optimizer.rescale_grad /= mine.factor
        return mine.optimizer

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduce ``grad``, which is overwritten with the sum, and update. Lists of all four are
        accepted, too.
        """
        _reduce(self._mine, index, grad)
        self._mine.optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update as ``update`` does, with a float32 copy of float16 weights."""
        _reduce(self._mine, index, grad)
        self._mine.optimizer.update_multi_precision(index, weight, grad, state)


# all other attributes are forwarded to the wrapped optimizer
_OWN = frozenset(DistributedOptimizer.__dict__) | {"_mine"}


class _OptimizerState(NamedTuple):
    optimizer: Any
    options: GradientOptions
    num_groups: int
    active: bool  # whether there is another rank to exchange with
    factor: float  # the factor applied to rescale_grad
    # the prefix of names: it must differ between optimizers and be the same on all ranks
    label: str
    names: dict[Any, str]

    def name(self, index: Any) -> str:
        """Return the ranks' common name for the parameter of this number.

        Gluon gives the parameter's name; Module numbers parameters in the same order on all ranks.
        """
        known = self.optimizer.param_dict
        if len(known) != len(self.names):
            self.names.clear()
            self.names.update(
                zip(known, canonical(parameter.name for parameter in known.values()), strict=True)
            )
        return f"{self.label}.{self.names.get(index, index)}"


def _reduce(mine: _OptimizerState, index: Any, grad: Any) -> None:
    """Sum gradients over the ranks, in place."""
    if not mine.active:
        return
    _check_unscaled(mine.optimizer)
    several = isinstance(index, (list, tuple))
    pairs = list(zip(index, grad, strict=True)) if several else [(index, grad)]
    prescale, process_set = mine.options.prescale, mine.options.process_set
    dense = [pair for pair in pairs if pair[1].stype == "default"]
    finish = [
        reduce_rows(mine.name(number), [gradient], True, prescale, process_set)
        for number, gradient in pairs
        if gradient.stype != "default"
    ]
    options: dict[str, Any] = {
        "op": ReduceOp.SUM,
        "prescale_factor": prescale,
        "process_set": process_set,
    }
    if several and mine.num_groups > 0:
        for place, group in enumerate(split(dense, mine.num_groups)):
            name = f"{mine.name(group[0][0])}:{group[-1][0]}"
            grouped_allreduce_(
                [gradient for _, gradient in group], name=name, priority=-place, **options
            )
    else:
        for place, (number, gradient) in enumerate(dense):
            allreduce_(gradient, name=mine.name(number), priority=-place, **options)
    for wait in finish:
        wait()


def _check_unscaled(optimizer: Any) -> None:
    """Raise ValueError if the trainer that steps with ``optimizer`` scales losses.

    Such a trainer decides locally whether to skip a step, before the optimizer gets the gradients.
    """
    parameter = next(iter(optimizer.param_dict.values()), None)
    if getattr(getattr(parameter, "_trainer", None), "_amp_loss_scaler", None) is not None:
        raise ValueError(
            "amp.init_trainer(trainer) is not supported with DistributedOptimizer: gluon.Trainer"
            " skips a step if this rank's gradients are not finite, while the other ranks wait"
            " for them. Use hvd.DistributedTrainer(params, optimizer), with which ranks decide"
            " together"
        )


def _restored(
    optimizer: Any, predivide: float, num_groups: int, process_set: Any, rescale_grad: float
) -> Any:
    optimizer.rescale_grad = rescale_grad
    if not context.takes_part():  # outside of a job, such as in a program that opens a checkpoint
        return optimizer
    return DistributedOptimizer(optimizer, predivide, num_groups, process_set or WORLD)


def split(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Split items into at most ``parts`` nonempty runs whose lengths differ by at most one."""
    count = min(parts, len(items))
    ends = [len(items) * number // count for number in range(count + 1)] if count else [0]
    return [items[begin:end] for begin, end in itertools.pairwise(ends)]
