"""Horovod's API for Keras 3 on TensorFlow, JAX and PyTorch: ``import farandole.keras as hvd``."""

from __future__ import annotations

import importlib
from typing import Any

import keras

from farandole.frontend import basics
from farandole.frontend.basics import *  # noqa: F403
from farandole.frontend.objects import allgather_object, broadcast_object
from farandole.keras import callbacks, elastic
from farandole.keras.data import shard
from farandole.keras.fit import install
from farandole.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from farandole.keras.saving import load_model
from farandole.keras.values import (
    allgather,
    allreduce,
    broadcast,
    cuda_built,
    nccl_built,
    reducescatter,
    rocm_built,
)
from farandole.keras.weights import broadcast_global_variables, broadcast_model, broadcast_variables

__all__ = [
    *basics.__all__,
    "Compression",  # noqa: F405  see __getattr__
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_model",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cuda_built",
    "elastic",
    "load_model",
    "nccl_built",
    "reducescatter",
    "rocm_built",
    "shard",
]


def __getattr__(name: str) -> Any:
    if name == "Compression":  # the backend's
        return importlib.import_module(f"farandole.{keras.backend.backend()}").Compression
    raise AttributeError(f"module 'farandole.keras' has no attribute {name!r}")


install()
