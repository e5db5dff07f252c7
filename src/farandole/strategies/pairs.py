"""Averages in pairs, in the background: one optimizer's weights on this rank, and how it finds the
other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from farandole.base.contracts import PushCodec
from farandole.base.digests import digest_of_text
from farandole.checks.agreement import gathered
from farandole.checks.consistency import check_same_weights, describe_weights
from farandole.core.engine import Engine
from farandole.job import context

if TYPE_CHECKING:
    from farandole.base.types import Array
    from farandole.core.ps.pairs import Averages, SharedWeights
    from farandole.core.ps.peer import PeerGroup


class Pairs:
    """``name``: of the optimizer, the same on all ranks; ``ranks``: the numbers in the job of the
    engine's; ``tell``: an activity that is over, its begin and its end; on any thread. ``codec``:
    None, or what compresses averages; ``gamma``: how much of the way two ranks go, None: all of it,
    or what suits the codec.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        ranks: Sequence[int],
        tell: Callable[[str, float, float], None],
        codec: PushCodec | None = None,
        gamma: float | None = None,
    ) -> None:
        self._codec, self._gamma = codec, gamma
        self._engine, self._name, self._ranks, self._tell = engine, name, ranks, tell
        self._group: PeerGroup | None = None
        self._groups = 0  # so far
        self._held: list[tuple[Any, ...]] | None = None  # shape and type of what the group has
        self._begun: Sequence[Array] = ()  # with what its weights began
        self._addresses: list[str] = []
        self._joins = -1  # of the engine, when addresses were exchanged

    def group(
        self, weights: Sequence[Array], statistics: Sequence[Array], names: Sequence[str]
    ) -> PeerGroup:
        """What this rank shows; it begins with these. Collective at first, and when a rank that had
        joined is here for the first time. Raises ValueError on all ranks if they have other
        weights.

        Where there were others before, those that stay (the same arrays) keep what averages have
        brought them since the last exchange: partners have gone their part of the way already.
        """
        if not self._addresses or ("" in self._addresses and self._joins != self._engine.joins):
            self._meet(weights, names)
        held = [(array.shape, array.dtype) for array in (*weights, *statistics)]
        if self._group is None or held != self._held:  # weights were added
            from farandole.core.ps.peer import PeerGroup  # here: other strategies need no sockets

            shown = self._ended()
            self._held, self._begun, self._groups = held, weights, self._groups + 1
            name = f"{self._name}.{self._groups}/{','.join(map(str, self._ranks))}"
            first = [*(shown.get(id(weight), weight) for weight in weights), *statistics]
            server = context.peer_server()
            self._group = PeerGroup(
                server,
                name,
                self._addresses,
                self._ranks,
                first,
                len(statistics),
                self._tell,
                self._averages(names),
                digest=digest_of_text(describe_weights(weights, names)),
            )
        return self._group

    def _ended(self) -> dict[int, Array]:
        """By the id of what they began with, the weights as they were shown in the end."""
        group = self._group
        self.close()
        return (
            {}
            if group is None
            else {id(one): view for one, view in zip(self._begun, group.trained, strict=True)}
        )

    def _averages(self, names: Sequence[str]) -> Callable[[SharedWeights], Averages]:
        from farandole.core.ps.pairs import WholeAverages

        codec, gamma, rank = self._codec, self._gamma, self._ranks[self._engine.rank]
        if codec is None:
            return lambda shared: WholeAverages(shared, 1.0 if gamma is None else gamma)
        from farandole.strategies.pair_copies import CodedAverages

        return lambda shared: CodedAverages(shared, codec, names, rank, gamma)

    def other_weights(self) -> None:
        """Those of the next call are others, maybe of the same shapes."""
        self._held = None

    def close(self) -> None:
        """Show nothing any more."""
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
        if self._group is not None:
            self._group.meet(self._addresses)
