"""Adasum for optimizers: every rank computes its own step, and the steps are combined.

Adasum therefore works with any optimizer: the combined steps include momentum and adaptive rates.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from farandole.base.digests import combined
from farandole.base.exchange_names import ADASUM, exchange_name
from farandole.base.types import ReduceOp
from farandole.checks.agreement import ReplicaComparison
from farandole.checks.strategy_mismatch import StrategyMismatchCheck
from farandole.core.engine import Engine
from farandole.job import context
from farandole.strategies.options import GradientOptions
from farandole.torch.binding import as_real
from farandole.torch.checks import OwnSteps, TorchReplica, digest
from farandole.torch.functions import grouped_allreduce
from farandole.torch.validation import name_of


class AdasumState:
    """Combines the ranks' steps of one optimizer by Adasum. See ``optimizer.OptimizerState``."""

    def __init__(
        self, optimizer: Any, original: weakref.ref[Any], options: GradientOptions
    ) -> None:
        self.reducer = None  # gradients are not reduced
        self._optimizer, self._original = weakref.ref(optimizer), original
        self._options, self._set = options, options.process_set
        self._own_steps = OwnSteps(optimizer, options.process_set, "op=Adasum")
        self._starts: list[tuple[Any, Any]] = []
        self._agreement: tuple[Engine, ReplicaComparison] | None = None

    def update_hooks(self) -> None: ...
    def synchronize(self) -> None: ...
    def before_sync(self) -> None: ...
    def load_state_dict(self, state: Mapping[str, Any] | None) -> None: ...
    def share(self, state: Mapping[str, Any]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    shared = state_dict

    def before_step(self, with_closure: bool) -> None:
        self._own_steps.before_step()
        original, optimizer = self._original(), self._optimizer()
        if original is not None and "step" in original.__dict__:  # a scheduler watches the original
            original._opt_called = True
        if optimizer is None or not self._set.included() or self._set.size() == 1:
            return
        self._compare(optimizer)
        self._starts = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
            # frozen after its gradient was computed: the step still changes it
            if parameter.requires_grad or parameter.grad is not None
        ]

    def _compare(self, optimizer: Any) -> None:
        """Compare the replicas: ranks begin each step with equal weights. Collective."""
        engine = context.engine(self._set)
        if self._agreement is None or self._agreement[0] is not engine:
            replica = TorchReplica(self._optimizer)
            names = optimizer._parameter_names
            replica.parameters = [
                (names.get(parameter) or name_of(number, place), parameter)
                for number, group in enumerate(optimizer.param_groups)
                for place, parameter in enumerate(group["params"])
            ]
            number = engine.numbers.next_optimizer()
            self._agreement = (
                engine,
                ReplicaComparison(replica, engine, exchange_name(ADASUM, number)),
            )
            with StrategyMismatchCheck(
                engine,
                number,
                self._set.ranks or range(engine.size),
                "DistributedOptimizer",
                ADASUM,
            ):
                due = self._agreement[1].any_due()
        else:
            due = self._agreement[1].any_due()
        if due:
            parameters = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            own = [digest(parameter.grad) for parameter in parameters if parameter.grad is not None]
            self._agreement[1].compare(combined(own) if any(own) else None)

    def after_step(self) -> None:
        starts, self._starts = self._starts, []
        if not starts:
            return
        with torch.no_grad():
            steps = [as_real(parameter.detach() - start) for parameter, start in starts]
            combined = grouped_allreduce(
                steps,
                op=ReduceOp.ADASUM,
                compression=self._options.compression,
                process_set=self._set,
            )
            for (parameter, start), step in zip(starts, combined, strict=True):
                as_real(start).add_(step)
                parameter.detach().copy_(start)

    def averaged(self, closure: Any) -> Any:
        """Return the closure unchanged: every rank minimizes its own loss."""
        return closure
