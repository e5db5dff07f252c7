"""Elastic training with PyTorch: ``hvd.elastic``."""

from __future__ import annotations

from farandole.core.api.elastic import run
from farandole.data import ElasticSampler
from farandole.job import context
from farandole.torch.elastic_auto import auto
from farandole.torch.elastic_state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

__all__ = [
    "ElasticSampler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "auto",
    "get_handler_registry",
    "is_step_complete",
    "run",
    "set_handler_registry",
]


def is_step_complete() -> bool:
    """Return whether the last ``optimizer.step()`` has completed a step of all ranks.

    With ``--fixed-global-batch``, a rank with several shares of the global batch calls
    ``optimizer.step()`` once for each of its shares, and only the last call changes the weights.
    Actions per step, such as counting steps or averaging weights, should follow this check. Without
    the flag the result is always True. Call it after ``optimizer.step()``.
    """
    return context.is_between_steps()
