"""Collectives of values: Python numbers, numpy arrays and tensors in, tensors of Keras's backend
out.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

from farandole.base.types import ReduceOp
from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import collective, documented
from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet


def functions() -> Any:
    """Return Farandole's module for Keras's backend."""
    return importlib.import_module(f"farandole.{keras.backend.backend()}")


@collective(
    "op",
    value="a number, a numpy array or a tensor; shape and type must be the same on all ranks.",
    example="loss = hvd.allreduce(loss, name='loss')  # the mean over all ranks",
)
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = NoneCompressor,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Reduce every rank's ``value`` to a new tensor of its shape and type."""
    return functions().allreduce(
        keras.ops.convert_to_tensor(value),
        average=average,
        name=name,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


@collective(
    "rows",
    value=(
        "a numpy array or a tensor. The first dimension may differ from rank to rank, the others"
        " and the type may not."
    ),
    example="rows = hvd.allgather(predictions)  # shape (sum of all ranks' rows, ...)",
)
def allgather(value: Any, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
    """Concatenate every rank's ``value`` in rank order, as a new tensor."""
    return functions().allgather(
        keras.ops.convert_to_tensor(value), name=name, process_set=process_set
    )


@collective(
    "root",
    value="a number, a numpy array or a tensor; shape and type must be the same on all ranks.",
    example="weights = hvd.broadcast(weights, root_rank=0)",
)
def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Return ``root_rank``'s ``value`` as a new tensor on every rank."""
    return functions().broadcast(
        keras.ops.convert_to_tensor(value), root_rank, name=name, process_set=process_set
    )


@collective(
    "op",
    "rows",
    value="a numpy array or a tensor; shape and type must be the same on all ranks.",
    op="Average (the default) or Sum.",
    example="mine = hvd.reducescatter(value, op=hvd.Sum)  # 5 rows on 2 ranks: 3 and 2",
)
def reducescatter(
    value: Any, name: str | None = None, op: int = ReduceOp.AVERAGE, process_set: ProcessSet = WORLD
) -> Any:
    """Return this rank's rows of the reduction, as a new tensor. If the rows do not divide evenly,
    the first ranks get one more each.
    """
    return functions().reducescatter(
        keras.ops.convert_to_tensor(value), name=name, op=op, process_set=process_set
    )


@documented("init", "set", "disagree")
def barrier(process_set: ProcessSet = WORLD) -> None:
    """Wait until all ranks (of the set) have called this."""
    functions().barrier(process_set)


def cuda_built() -> bool:
    """Return whether the backend can use CUDA."""
    return bool(_ask("cuda_built"))


def rocm_built() -> bool:
    """Return whether the backend can use ROCm."""
    return bool(_ask("rocm_built"))


def nccl_built() -> int:
    """Return the version of the backend's NCCL as a number; 0 without NCCL."""
    return int(_ask("nccl_built"))


def _ask(name: str) -> int:
    function = getattr(functions(), name, None)
    return 0 if function is None else function()
