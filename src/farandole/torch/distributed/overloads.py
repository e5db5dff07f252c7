"""The overloads of torch.distributed's methods, as calls of one Python method."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
from torch import distributed

_NAMES = {  # argument names in torch's overloads: our names
    "tensor": "tensors",
    "root": "opts",
    "output_tensors": "outputs",
    "output_tensor": "outputs",
    "output": "outputs",
    "input_tensors": "inputs",
    "input_tensor": "inputs",
    "input": "inputs",
}


def named_as_in_torch(method: Any) -> Any:
    """Accept the argument names of torch's overloads as well: ``group.broadcast(tensor,
    root=0)``.
    """

    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        return method(*args, **{_NAMES.get(name, name): value for name, value in named.items()})

    return call


def as_list(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def as_lists(tensors: Any) -> Any:
    return [tensors] if tensors and isinstance(tensors[0], torch.Tensor) else tensors


def options_of(opts: Any, kind: Callable[[], Any], timeout: Any = None, op: Any = None) -> Any:
    """Return the options of a call, which may pass an operation, a rank or a timeout instead."""
    if opts is not None and hasattr(opts, "timeout") and timeout is None and op is None:
        return opts
    made = kind() if opts is None or not hasattr(opts, "timeout") else opts
    if isinstance(opts, timedelta):
        timeout = opts
    elif isinstance(opts, int):
        made.rootRank = opts
    elif opts is not None and not hasattr(opts, "timeout"):
        op = opts
    if op is not None:
        made.reduceOp = op if isinstance(op, distributed.ReduceOp) else distributed.ReduceOp(op)
    if isinstance(timeout, timedelta):
        made.timeout = timeout
    return made
