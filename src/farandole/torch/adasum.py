"""Adasum for optimizers: every rank steps by itself, and the steps that the ranks took are combined.

So it works with any optimizer: what it made of its gradients (momentum, adaptive rates) is what is combined.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from farandole.context import ProcessSet
from farandole.torch.functions import grouped_allreduce
from farandole.types import ReduceOp


class Steps:
    """What one optimizer's step changes, reduced over the ranks. It takes the place of ``optimizer._Exchange``."""

    def __init__(self, optimizer: Any, original: weakref.ref[Any], compression: Any, process_set: ProcessSet) -> None:
        self.strategy = None  # gradients stay as they are
        self._optimizer, self._original = weakref.ref(optimizer), original
        self._compression, self._set = compression, process_set
        self._starts: list[tuple[Any, Any]] = []

    def look_around(self) -> None: ...
    def synchronize(self) -> None: ...

    def before_step(self, with_closure: bool) -> None:
        original, optimizer = self._original(), self._optimizer()
        if original is not None and "step" in original.__dict__:  # a scheduler watches that one
            original._opt_called = True
        if optimizer is None or not self._set.included() or self._set.size() == 1:
            return
        self._starts = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    def after_step(self) -> None:
        starts, self._starts = self._starts, []
        if not starts:
            return
        with torch.no_grad():
            steps = [parameter.detach() - start for parameter, start in starts]
            combined = grouped_allreduce(
                steps, op=ReduceOp.ADASUM, compression=self._compression, process_set=self._set
            )
            for (parameter, start), step in zip(starts, combined, strict=True):
                parameter.detach().copy_(start.add_(step))

    def averaged(self, closure: Any) -> Any:
        """Every rank follows its own loss."""
        return closure
