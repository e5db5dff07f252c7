"""Optimizers that step locally and exchange weights according to a strategy, for Keras 3 and Keras
2.

Each backend's file has ``run_if(due, run, values, step)``: if ``due``, call ``run(arrays, step)``,
which overwrites the arrays (float32 or float64) of the tensors ``values``, and return the new
tensors. Numbers may be values of a traced program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.contracts import Strategy
from farandole.job import context
from farandole.strategies.inner_optimizer import InnerOptimizer
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import StatefulExchange

if TYPE_CHECKING:
    from farandole.base.types import Array


class KerasExchange:
    """The exchanges of one optimizer's weights. The strategy's state is in host memory."""

    def __init__(
        self,
        options: GradientOptions,
        strategy: Strategy,
        tensor_of: Callable[[Any], Any],
        array_of: Callable[[Any], Array],
    ) -> None:
        """``tensor_of``, ``array_of``: return a variable's value, for this version of Keras."""
        self._kept, self._strategy = (
            StatefulExchange("DistributedOptimizer", options, strategy),
            strategy,
        )
        self.spec = strategy.spec
        self._tensor_of, self._array_of = tensor_of, array_of
        self._names: Sequence[str] = ()
        self._total = 0  # variables trained so far
        self._since = 0  # the step of the last exchange
        # for steps since then that did not train all variables: which variables they trained
        self._partial: dict[int, Sequence[bool]] = {}

    def describe(self, inner: InnerOptimizer | None) -> None:
        """Record the facts about the optimizer inside."""
        self._kept.exchange.describe(inner)

    def before_step(
        self, run_if: Callable[..., Any], variables: Sequence[Any], step: Any, final: Any = True
    ) -> Sequence[Any]:
        """Run the strategy's part before step number ``step`` (1, 2 ...; may be a traced number).

        ``final``: see ``after_step``; a step may be computed several times before it counts. The
        returned values must be computed before the step begins. ``variables`` may include new ones.
        """
        context.skip_exchange_check()  # the first exchange may be many steps later
        if not self._kept.exchange.kinds:
            return ()
        first = step == 1
        values = [self._tensor_of(variable) for variable in variables]
        known, self._total = self._total, max(self._total, len(variables))
        began = run_if(first if final is True else first & final, self._begin, values, step)
        if 0 < known < len(variables):
            began = run_if(True, self._begin_others, began, step)
        return began  # type: ignore[no-any-return]

    def after_step(
        self,
        run_if: Callable[..., Any],
        variables: Sequence[Any],
        names: Sequence[str],
        step: Any,
        final: Any = True,
        trained: Sequence[bool] = (),
    ) -> None:
        """Run the strategy's part after step number ``step``.

        ``variables``: all of the optimizer. ``trained``: which of them the step may have changed
        (empty: all). ``final``: False if the computed step will be dropped, or a traced value for
        it.
        """
        self._kept.exchange.stepped()
        self._names = names
        due = self._strategy.due(step)
        run: Callable[..., None] = self._run
        if not all(trained):
            run_if(
                final, functools.partial(self._note, tuple(trained)), [self._tensor_of(0.0)], step
            )
            # in a graph, no dependency orders this exchange after the recording
            run = functools.partial(self._run_noted, tuple(trained))
        values = [self._tensor_of(variable) for variable in variables]
        exchanged = run_if(due if final is True else due & final, run, values, step)
        for variable, value, new in zip(variables, values, exchanged, strict=True):
            if new is not value:
                variable.assign(new)

    def end_of_epoch(self, variables: Sequence[Any], step: int) -> None:
        """Run the strategy's exchange at the end of an epoch.

        Call it outside of compiled programs. Collective if the strategy exchanges by epochs.
        """
        if self._kept.at_end_of_epoch(step):
            self._outside(variables, lambda arrays: self._run(arrays, step))

    def average(self, variables: Sequence[Any], step: int, statistics: Sequence[Any] = ()) -> None:
        """Set the same weights on all ranks: usually their mean over ranks.

        ``variables``: all of the optimizer; ``statistics``: others, which are averaged. ``step``:
        the last one. Call it outside of compiled programs. Collective.
        """

        def change(arrays: list[Array]) -> None:
            count = len(variables)
            if self._kept.begun and step > self._since:
                self._kept.begin(arrays[:count], lambda array: array, self._trained(count, step))
            else:
                count = self._kept.count or count
            names = self._kept.chosen(self._names) if self._names else None
            self._kept.average(self._kept.chosen(arrays[:count]), names)
            if arrays[count:]:
                self._kept.exchange.average(arrays[count:])

        self._outside([*variables, *statistics], change)

    def average_replaced(self, variables: Sequence[Any]) -> None:
        """Replace the weights that the program assigned by their mean over all ranks.

        The strategy's state belongs to the earlier weights, so it is reset. Call this outside of
        compiled programs. Collective.
        """
        self.restart()
        self._outside(variables, self._kept.exchange.average)

    def restart(self) -> None:
        """Reset the strategy's state at the next exchange, because ranks received other weights."""
        self._kept.restart()

    def state_dict(self) -> dict[str, Any]:
        return {**self._kept.state_dict(), "since": self._since, "partial": dict(self._partial)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept.load_state_dict(state)
        self._since, self._partial = state.get("since", 0), dict(state.get("partial", {}))

    def merge(self, variables: Sequence[Any], step: int) -> None:
        """Send the mean progress of the trained ranks to rank 0 of an elastic job's new membership.
        ``variables``: the optimizer's, then statistics. ``step``: the last one of this rank.
        Collective.
        """
        self._outside(variables, lambda arrays: self._kept.merge(arrays, step))

    def share(self, state: Mapping[str, Any]) -> None:
        """Load rank 0's ``state_dict``, on all ranks; the state begins again if the strategy does
        not keep it equal on all of them.
        """
        self._kept.exchange.forget_kept()
        if self._strategy.reference.same_slots:
            self.load_state_dict(state)
        else:
            self.restart()

    def _outside(self, variables: Sequence[Any], change: Callable[[list[Array]], None]) -> None:
        # 0-dimensional arrays instead of numbers
        arrays = [np.array(self._array_of(variable)) for variable in variables]
        wide = [array if array.dtype.itemsize >= 4 else array.astype("float32") for array in arrays]
        change(wide)
        for variable, array in zip(variables, wide, strict=True):
            variable.assign(array)

    def _begin(self, arrays: Sequence[Array], step: int) -> None:
        self._kept.restart()
        self._kept.begin(arrays, lambda array: array)

    def _begin_others(self, arrays: Sequence[Array], step: int) -> None:
        self._kept.begin_others(arrays)

    def _note(self, trained: Sequence[bool], arrays: Sequence[Array], step: int) -> None:
        self._partial[step] = trained

    def _run_noted(self, trained: Sequence[bool], arrays: Sequence[Array], step: int) -> None:
        self._note(trained, arrays, step)
        self._run(arrays, step)

    def _trained(self, count: int, step: int) -> list[bool]:
        """Return the variables that steps since the last exchange may have changed."""
        steps = range(self._since + 1, step + 1)
        # no steps: training was rolled back
        whole = not steps or any(number not in self._partial for number in steps)
        sets = [] if whole else [self._partial[number] for number in steps]
        return [
            whole or any(trained[place : place + 1] == (True,) for trained in sets)
            for place in range(count)
        ]

    def _run(self, arrays: Sequence[Array], step: int) -> None:
        trained = self._trained(len(arrays), step)
        self._since, self._partial = step, {}
        if self._kept.exchange.kinds and not self._kept.begun:  # training resumes from a file
            self._kept.exchange.average(arrays)
            self._begin(arrays, step)
        else:
            self._kept.begin(arrays, lambda array: array, trained, stepping=True)
            self._kept(self._kept.chosen(arrays), step, self._kept.chosen(self._names))
