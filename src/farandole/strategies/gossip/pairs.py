"""Pairwise averages in the background: one optimizer's shared weights on this rank, and the
addresses of the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.digests import digest_of_text
from farandole.checks.consistency import check_same_weights, describe_weights
from farandole.checks.exchange import gathered
from farandole.core.engine import Engine
from farandole.job import context
from farandole.strategies.deltas import deltas
from farandole.strategies.mean import MeanReducer

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.gossip.peer_group import PeerGroup


class PairAverages:
    """Pairwise averages of one optimizer's weights.

    - ``name``: The optimizer's name, the same on all ranks.
    - ``ranks``: The engine's ranks as numbers in the job.
    - ``on_average``: Called after each average, on any thread, with its name, begin and end.
    - ``gamma``: The fraction of the distance to their mean that two ranks move.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        ranks: Sequence[int],
        on_average: Callable[[str, float, float], None],
        gamma: float,
    ) -> None:
        self._engine = engine
        self._name = name
        self._ranks = ranks
        self._on_average = on_average
        self._gamma = gamma
        self._group: PeerGroup | None = None
        self._groups = 0  # groups so far
        self._held: list[tuple[Any, ...]] | None = None  # shape and dtype of the group's arrays
        self._begun: Sequence[Array] = ()  # the group's initial weights
        self._addresses: list[str] = []
        self._joins = -1  # the engine's joins when addresses were exchanged

    def group(
        self, weights: Sequence[Array], statistics: Sequence[Array], names: Sequence[str]
    ) -> PeerGroup:
        """Return the group that shares this rank's weights, initialized with ``weights`` and
        ``statistics``.

        The first call is collective, and so is the first call after a rank had joined. Raises
        ValueError on all ranks if their weights differ. If weights were added, the old weights (the
        same arrays) keep the averages since the last exchange, because partners have already moved,
        too.
        """
        if not self._addresses or ("" in self._addresses and self._joins != self._engine.joins):
            self._meet(weights, names)
        held = [(array.shape, array.dtype) for array in (*weights, *statistics)]
        if self._group is None or held != self._held:  # weights were added
            # Imported here: other strategies need no sockets.
            from farandole.core.gossip.peer_group import PeerGroup
            from farandole.core.gossip.shared_weights import SharedWeights

            shown = self._ended()
            self._held = held
            self._begun = weights
            self._groups += 1
            first = [*(shown.get(id(weight), weight) for weight in weights), *statistics]
            self._group = PeerGroup(
                context.peer_server(),
                f"{self._name}.{self._groups}/{','.join(map(str, self._ranks))}",
                self._addresses,
                self._ranks,
                SharedWeights(first, len(statistics), self._gamma),
                self._on_average,
                digest=digest_of_text(describe_weights(weights, names)),
            )
        return self._group

    def average_all(
        self,
        anchors: Sequence[Array],
        changes: Sequence[Array],
        statistics: Sequence[Array],
        names: Sequence[str],
        mean: MeanReducer,
    ) -> None:
        """See ``contracts.Peers.average_shown``. ``mean``: over all ranks."""
        group = self.group(anchors, statistics, names)
        group.take([*changes, *statistics])
        group.rest()
        mean.barrier()  # no rank starts another average
        own = [*(np.zeros_like(change) for change in changes), *statistics]
        group.take(own)
        means = [array.copy() for array in own]
        mean(means)
        count = len(changes)
        # A rank that is further ahead may have averaged with this one in the meantime; its next
        # exchange accounts for that.
        group.correct(deltas(means[:count], own[:count]), means[count:])
        for array, value in zip((*changes, *statistics), means, strict=True):
            np.copyto(array, value)  # identical bits on all ranks: shared weights were rounded

    def _ended(self) -> dict[int, Array]:
        """Close the group. Return its final weights by the id of their initial arrays."""
        group = self._group
        self.close()
        return (
            {}
            if group is None
            else {id(one): view for one, view in zip(self._begun, group.trained, strict=True)}
        )

    def other_weights(self) -> None:
        """Expect different weights, perhaps of the same shapes, in the next call."""
        self._held = None

    def close(self) -> None:
        """Stop sharing weights."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _meet(self, weights: Sequence[Array], names: Sequence[str]) -> None:
        check_same_weights(self._engine, self._name, self._ranks, weights, names)
        mine = context.peer_server().address.encode()
        self._addresses = [
            text.decode() for text in gathered(self._engine, f"{self._name}.pairs", mine)
        ]
        self._joins = self._engine.joins
        if context.is_elastic():
            context.commit_alone()  # all ranks have made the same commits before
        if self._group is not None:
            self._group.meet(self._addresses)
