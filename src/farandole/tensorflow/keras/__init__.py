"""``farandole.keras`` where Horovod has it: ``import farandole.tensorflow.keras as hvd``.

With TF_USE_LEGACY_KERAS=1, when ``tf.keras`` is Keras 2, it is ``farandole.keras.tf_keras``. The
lists are plain ones because type checkers read them without running anything.
"""

from __future__ import annotations

from typing import Any

from farandole.core.api.keras_version import keras_2, keras_name
from farandole.job.plugins import registry

_api = registry.load("api", keras_name())


def __getattr__(name: str) -> Any:
    return getattr(_api, name)


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
    "barrier",
    "broadcast",
    "broadcast_global_variables",
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
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
if keras_2():
    __all__ += ["SyncBatchNormalization"]
else:
    __all__ += ["Pipeline", "broadcast_model", "shard"]
