"""The public names of the frameworks' modules, in groups.

A module composes its ``__all__`` from these groups and its own names. Type checkers do not run
``listed``: they recognize names that a module defines, imports by ``import name as name``, or
imports with ``import *``.
"""

from __future__ import annotations

from collections.abc import Iterable

JOB = (
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "preempted",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
)
PROCESS_SETS = ("ProcessSet", "add_process_set", "global_process_set", "remove_process_set")
REDUCTIONS = ("Adasum", "Average", "Max", "Min", "Product", "Sum")
# In Horovod the answers depend on compilation.
BUILT_FOR_ALL = (
    "ccl_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
)
BUILT_FOR_FRAMEWORK = ("cuda_built", "nccl_built", "rocm_built")
BASICS = (*JOB, *PROCESS_SETS, *REDUCTIONS, *BUILT_FOR_ALL, "HorovodInternalError")

SINGLE = ("allgather", "allreduce", "alltoall", "broadcast", "reducescatter")
GROUPED = ("grouped_allgather", "grouped_allreduce", "grouped_reducescatter")
COLLECTIVES = (*SINGLE, *GROUPED, "barrier", "join")
IN_PLACE = ("allreduce_", "broadcast_", "grouped_allreduce_")
ASYNCHRONOUS = (*(f"{name}_async" for name in (*SINGLE, *GROUPED)), "poll", "synchronize")
ASYNCHRONOUS_IN_PLACE = tuple(f"{name[:-1]}_async_" for name in IN_PLACE)
OBJECTS = ("allgather_object", "broadcast_object")

KERAS = (
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
    "seed_everything",
)
KERAS_3_ONLY = ("Pipeline", "broadcast_model", "shard")
_KERAS_2_AND_3 = (*BASICS, *BUILT_FOR_FRAMEWORK, *OBJECTS, *KERAS, "Compression", "save")
KERAS_2 = (*_KERAS_2_AND_3, "SyncBatchNormalization")
KERAS_3 = (*_KERAS_2_AND_3, *KERAS_3_ONLY)


def listed(*groups: Iterable[str]) -> list[str]:
    """Return the names of all groups in alphabetical order, each once: an ``__all__``."""
    return sorted({name for group in groups for name in group})
