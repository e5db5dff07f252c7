"""Horovod's API for Keras 3 on TensorFlow, JAX and PyTorch: ``import farandole.keras as hvd``.

That for Keras 2 is ``farandole.keras.tf_keras``. A program for Keras 2 (TF_USE_LEGACY_KERAS=1)
comes by here, too, and Keras 3 is not loaded for it unless it asks for one of these names.
"""

from __future__ import annotations

import importlib
from typing import Any

from farandole.core.api.basics import *  # noqa: F403
from farandole.core.api.helpers import print as print  # not for *: it would hide Python's
from farandole.core.api.helpers import save_model as save
from farandole.core.api.keras_version import keras_2
from farandole.core.api.objects import allgather_object, broadcast_object

if not keras_2():
    from farandole.keras.keras_3 import *  # noqa: F403

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "Pipeline",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
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
        values = importlib.import_module("farandole.keras.values")
        return values.functions().Compression
    if name in __all__:
        return getattr(importlib.import_module("farandole.keras.keras_3"), name)
    raise AttributeError(f"module 'farandole.keras' has no attribute {name!r}")
