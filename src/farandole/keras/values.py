"""Collectives of values: Python numbers, numpy arrays and tensors go in, tensors of Keras's backend come out."""

from __future__ import annotations

import importlib
from typing import Any

import keras

from farandole.context import ProcessSet
from farandole.frontend.compression import NoneCompressor
from farandole.frontend.ops import WORLD
from farandole.types import ReduceOp


def _functions() -> Any:
    return importlib.import_module(f"farandole.{keras.backend.backend()}")


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, op: int | None = None, compression: Any = NoneCompressor,
    process_set: ProcessSet = WORLD,
) -> Any:  # fmt: skip
    """The reduction of every rank's ``value``. ``op``: Average (the default), Sum, Min, Max, ..."""
    return _functions().allreduce(
        keras.ops.convert_to_tensor(value), average=average, name=name, compression=compression, op=op,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set,
    )  # fmt: skip


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
    """Every rank's ``value``, one below the other. The first dimension may differ."""
    return _functions().allgather(keras.ops.convert_to_tensor(value), name=name, process_set=process_set)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
    """``root_rank``'s ``value``."""
    return _functions().broadcast(keras.ops.convert_to_tensor(value), root_rank, name=name, process_set=process_set)


def reducescatter(
    value: Any, name: str | None = None, op: int = ReduceOp.AVERAGE, process_set: ProcessSet = WORLD
) -> Any:
    """This rank's rows of the reduction."""
    return _functions().reducescatter(keras.ops.convert_to_tensor(value), name=name, op=op, process_set=process_set)


def cuda_built() -> bool:
    """Can the backend use CUDA?"""
    return bool(_ask("cuda_built"))


def rocm_built() -> bool:
    """Can the backend use ROCm?"""
    return bool(_ask("rocm_built"))


def nccl_built() -> int:
    """The version of NCCL that the backend brings, as a number; 0 if none."""
    return int(_ask("nccl_built"))


def _ask(name: str) -> int:
    function = getattr(_functions(), name, None)
    return 0 if function is None else function()
