"""The saved values of Keras variables in a state, for Keras 3 and Keras 2."""

from __future__ import annotations

from typing import Any

from farandole.core.api.state import ObjectState, check_fit
from farandole.keras.strategy_states import StrategyStates


class SavedVariables(ObjectState):
    """A state whose ``_copies`` has each variable with its saved value, as an array, and whose
    ``_strategies`` has the states of its optimizers' strategies.
    """

    _copies: list[tuple[Any, Any]]
    _strategies: StrategyStates

    def saved_values(self) -> Any:
        return [value for _, value in self._copies], self._strategies.saved_values(), self._saved

    def use_saved_values(self, saved: Any) -> None:
        copies, *strategies, values = saved  # commits of earlier versions have no strategies
        self._strategies.use_saved_values(strategies[0] if strategies else [])
        check_fit([value for _, value in self._copies], copies)
        super().use_saved_values(values)
        variables = [variable for variable, _ in self._copies]
        self._copies = list(zip(variables, copies, strict=True))
