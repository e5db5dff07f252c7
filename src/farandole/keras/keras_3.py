"""The names of ``farandole.keras`` that load Keras 3, and the change of its ``fit``."""

from __future__ import annotations

from farandole.keras import callbacks as callbacks
from farandole.keras import elastic as elastic
from farandole.keras.data import shard
from farandole.keras.fit import install
from farandole.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from farandole.keras.pipeline import Pipeline
from farandole.keras.saving import load_model
from farandole.keras.seeds import seed_everything
from farandole.keras.values import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    cuda_built,
    nccl_built,
    reducescatter,
    rocm_built,
)
from farandole.keras.weights import broadcast_global_variables, broadcast_model, broadcast_variables

__all__ = [
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Pipeline",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_model",
    "broadcast_variables",
    "callbacks",
    "cuda_built",
    "elastic",
    "load_model",
    "nccl_built",
    "reducescatter",
    "rocm_built",
    "seed_everything",
    "shard",
]

install()
