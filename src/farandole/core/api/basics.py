"""The names of every framework's module that do not depend on its tensors: the job, process sets
and operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base.types import ReduceOp
from farandole.core.api import names
from farandole.core.api.capabilities import ccl_built as ccl_built
from farandole.core.api.capabilities import ddl_built as ddl_built
from farandole.core.api.capabilities import gloo_built as gloo_built
from farandole.core.api.capabilities import gloo_enabled as gloo_enabled
from farandole.core.api.capabilities import mpi_built as mpi_built
from farandole.core.api.capabilities import mpi_enabled as mpi_enabled
from farandole.core.api.capabilities import mpi_threads_supported as mpi_threads_supported
from farandole.core.api.preemption import preempted as preempted
from farandole.errors import HorovodInternalError as HorovodInternalError
from farandole.job import context
from farandole.job.context import ProcessSet as ProcessSet
from farandole.job.context import add_process_set as add_process_set
from farandole.job.context import cross_rank as cross_rank
from farandole.job.context import cross_size as cross_size
from farandole.job.context import global_process_set as global_process_set
from farandole.job.context import init as init
from farandole.job.context import is_homogeneous as is_homogeneous
from farandole.job.context import is_initialized as is_initialized
from farandole.job.context import local_rank as local_rank
from farandole.job.context import local_size as local_size
from farandole.job.context import rank as rank
from farandole.job.context import remove_process_set as remove_process_set
from farandole.job.context import shutdown as shutdown
from farandole.job.context import size as size
from farandole.job.context import start_timeline as start_timeline
from farandole.job.context import stop_timeline as stop_timeline

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


class _Basics:
    """The object that programs expect as ``hvd.mpi_ops._basics``."""

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        return context.process_sets()


_basics = _Basics()

if not TYPE_CHECKING:
    __all__ = names.listed(names.BASICS)
