"""The states of strategies in elastic jobs: saved, restored, and sent to new ranks, for both
versions of Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.core.api.objects import broadcast_object
from farandole.job import context
from farandole.keras.exchange import KerasExchange


class StrategyStates:
    """The states of the strategies of a model's optimizers.

    ``exchanges``: returns the exchanges of those optimizers that exchange weights, each with the
    number of its optimizer's steps; ``variables``: returns the model's floating-point variables.
    """

    def __init__(
        self,
        exchanges: Callable[[], Sequence[tuple[KerasExchange, int]]],
        variables: Callable[[], Sequence[Any]],
    ) -> None:
        self._exchanges = exchanges
        self._variables = variables
        self._saved: list[tuple[KerasExchange, Mapping[str, Any]]] = []

    def save(self) -> None:
        """Keep copies in memory."""
        self._saved = [(exchange, exchange.state_dict()) for exchange, _ in self._exchanges()]

    def restore(self) -> None:
        """Return to the copies."""
        for exchange, state in self._saved:
            exchange.load_state_dict(state)

    def saved_values(self) -> list[Mapping[str, Any]]:
        """Return the copies."""
        return [state for _, state in self._saved]

    def use_saved_values(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Replace the copies. Raises ValueError for states of another number of optimizers."""
        exchanges = [exchange for exchange, _ in self._exchanges()]
        if states and len(states) != len(exchanges):
            raise ValueError(
                f"the commit has {len(states)} optimizers that exchange weights, and the state has"
                f" {len(exchanges)}"
            )
        self._saved = list(zip(exchanges, states, strict=False))

    def merge(self) -> None:
        """Send rank 0 the mean of the variables of all trained ranks, before its variables are sent
        in an elastic job. Collective.
        """
        exchanges = self._exchanges()
        if context.is_elastic() and context.size() > 1 and exchanges:
            exchange, step = exchanges[0]
            exchange.merge(self._variables(), step)

    def share(self) -> None:
        """Load rank 0's states. Collective."""
        exchanges = [exchange for exchange, _ in self._exchanges()]
        if exchanges and context.size() > 1:
            states = broadcast_object([exchange.state_dict() for exchange in exchanges], 0)
            for exchange, state in zip(exchanges, states, strict=True):
                exchange.share(state)
