"""Elastic training with PyTorch: ``hvd.elastic``."""

from __future__ import annotations

from farandole.core.api.elastic import run
from farandole.data import ElasticSampler
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
    "run",
    "set_handler_registry",
]
