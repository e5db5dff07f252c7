"""The user's module, adapted to distributed training."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

import farandole.torch as hvd
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.lightning.losses import Losses


def shared(module: Any, training: Training, losses: Losses) -> Any:
    """Return the module with optimizers that average gradients, and losses scaled to this rank's
    share of the rows.
    """
    kind = type(module)

    class Shared(kind):  # type: ignore[valid-type,misc]
        def configure_optimizers(self) -> Any:
            return _distributed(super().configure_optimizers(), self, training)

        @functools.wraps(kind.training_step)  # Lightning inspects its arguments
        def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            output = super().training_step(batch, *args, **kwargs)
            loss = output.get("loss") if isinstance(output, Mapping) else output
            losses.add(loss)
            if loss is None or losses.share == 1:
                return output
            return (
                {**output, "loss": loss * losses.share}
                if isinstance(output, Mapping)
                else loss * losses.share
            )

    Shared.__name__ = kind.__name__
    Shared.__qualname__ = kind.__qualname__
    module.__class__ = Shared
    return module


def _distributed(optimizers: Any, module: Any, training: Training) -> Any:
    """Return the result of ``configure_optimizers`` with each optimizer wrapped, including
    references in schedulers.
    """
    wrapped: dict[int, Any] = {}
    passes = int(training.spec.payload["trainer_args"].get("accumulate_grad_batches", 1))
    options = {"backward_passes_per_step": passes, **training.compression()}

    def of(value: Any) -> Any:
        if isinstance(value, torch.optim.Optimizer):
            if id(value) not in wrapped:
                own = {id(each) for group in value.param_groups for each in group["params"]}
                names = [
                    (name, each) for name, each in module.named_parameters() if id(each) in own
                ]
                wrapped[id(value)] = hvd.DistributedOptimizer(
                    value, named_parameters=names, **options
                )
            return wrapped[id(value)]
        if isinstance(value, list | tuple):
            return type(value)(of(each) for each in value)
        if isinstance(value, dict):
            return {name: of(each) for name, each in value.items()}
        if isinstance(getattr(value, "optimizer", None), torch.optim.Optimizer):
            value.optimizer = of(value.optimizer)
        return value

    return of(optimizers)
