"""``horovod.common.basics``: the topology of the job as methods of an object."""

from __future__ import annotations

import importlib
from typing import Any

from farandole.base.types import ReduceOp
from farandole.core.api import capabilities
from farandole.job import context

_OF_TORCH = ("nccl_built", "cuda_built", "rocm_built")


class HorovodBasics:
    """``init``, ``rank``, ``size`` etc. as methods. Programs use it as ``hvd.mpi_ops._basics``."""

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        """The arguments are ignored; Horovod's constructor loads a library from ``pkg_path``."""

    Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
    Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

    init = staticmethod(context.init)
    shutdown = staticmethod(context.shutdown)
    is_initialized = staticmethod(context.is_initialized)
    rank = staticmethod(context.rank)
    size = staticmethod(context.size)
    local_rank = staticmethod(context.local_rank)
    local_size = staticmethod(context.local_size)
    cross_rank = staticmethod(context.cross_rank)
    cross_size = staticmethod(context.cross_size)
    is_homogeneous = staticmethod(context.is_homogeneous)
    start_timeline = staticmethod(context.start_timeline)
    stop_timeline = staticmethod(context.stop_timeline)
    mpi_threads_supported = staticmethod(capabilities.mpi_threads_supported)
    mpi_enabled = staticmethod(capabilities.mpi_enabled)
    gloo_enabled = staticmethod(capabilities.gloo_enabled)
    mpi_built = staticmethod(capabilities.mpi_built)
    gloo_built = staticmethod(capabilities.gloo_built)
    ddl_built = staticmethod(capabilities.ddl_built)
    ccl_built = staticmethod(capabilities.ccl_built)

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        return context.process_sets()

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TORCH:  # imports torch only on request
            return getattr(importlib.import_module("farandole.torch"), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
