"""Horovod's API for Keras 3 on TensorFlow, JAX and PyTorch: ``import farandole.keras as hvd``."""

from __future__ import annotations

import importlib
from typing import Any

import keras

from farandole.frontend.basics import *  # noqa: F403
from farandole.frontend.helpers import print as print  # not for *: it would hide Python's
from farandole.frontend.helpers import save_model as save
from farandole.frontend.objects import allgather_object, broadcast_object
from farandole.keras import callbacks, elastic
from farandole.keras.data import shard
from farandole.keras.fit import install
from farandole.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from farandole.keras.saving import load_model
from farandole.keras.seeds import seed_everything
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
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_model",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "save",
    "seed_everything",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    if name == "Compression":  # the backend's
        return importlib.import_module(f"farandole.{keras.backend.backend()}").Compression
    raise AttributeError(f"module 'farandole.keras' has no attribute {name!r}")


install()
