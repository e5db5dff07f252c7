"""Encoding of weights as differences from the copies that neighbours have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import ExchangeContext, PushCodec, Strategy
from farandole.errors import JoinedError
from farandole.strategies.encodings import CHANGE, CodecState, WholeEncoding
from farandole.strategies.gossip.copies import Copies
from farandole.strategies.gossip.neighbours import move_by_differences
from farandole.strategies.peers import EnginePeers, PeerSession

if TYPE_CHECKING:
    from farandole.base.types import Array


class CopyEncoding(WholeEncoding):
    """Sends differences from this rank's copy, which is kept in a further slot; see ``copies``."""

    slots: tuple[str, ...] = ("weights",)

    def __init__(self, codec: PushCodec, owner: object) -> None:
        self._codec = codec
        self._state = CodecState(codec, owner)
        self._copies: Copies

    def bind(self, session: PeerSession) -> None:
        """See ``contracts.Encoding``."""
        super().bind(session)
        self._copies = Copies(self._codec, session.engine.rank)

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """See ``contracts.Encoding``."""
        *own, sent = slots
        peers = _CodedNeighbourPeers(self.session, context, self._copies, sent)
        self._state.claim(peers.keys_of(weights))
        strategy.exchange(weights, own, peers, step)
        return peers.statistics_travelled

    def averaged(self, weights: Sequence[Array], slots: Sequence[Sequence[Array]]) -> None:
        """See ``contracts.Encoding``. An outdated copy would drive the ranks apart again."""
        for sent, weight in zip(slots[-1] if slots else (), weights, strict=bool(slots)):
            np.copyto(sent, weight)

    def forget(self) -> None:
        """See ``contracts.Encoding``."""
        self._state.forget()


class _CodedNeighbourPeers(EnginePeers):
    """Peers whose averages with neighbours use a codec. ``sent``: the neighbours' copy of this
    rank's weights.
    """

    def __init__(
        self,
        session: PeerSession,
        context: ExchangeContext,
        copies: Copies,
        sent: Sequence[Array],
    ) -> None:
        super().__init__(session, context)
        self._copies = copies
        self._sent = sent

    def keys_of(self, weights: Sequence[Array]) -> list[str]:
        """Return the keys of the codec's state for these weights."""
        return [f"{CHANGE}{name}" for name in self.context.names_of(weights)]

    def average_with(
        self,
        arrays: Sequence[Array],
        to: Sequence[int],
        ever: Sequence[int] = (),
        gamma: float | None = None,
    ) -> None:
        """See ``contracts.Peers``."""
        if len(self._sent) != len(arrays):
            super().average_with(arrays, to, ever, gamma)
            return
        step = self._copies.gamma(arrays) if gamma is None else gamma
        received = self._swap_copies(arrays, ever or to)
        move_by_differences(arrays, self._sent, received, step)

    def _swap_copies(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        """Exchange differences, and return the copies of the senders' weights, by rank."""
        exchange, names = self.session.neighbours, self.context.names_of(arrays)
        exchange.compare(arrays, names)
        message = self._copies.message(arrays, self._sent, self.keys_of(arrays), len(to))
        try:
            messages = exchange.send(message, to, arrays, names)
        except (JoinedError, ValueError):
            self._copies.lost()
            raise
        try:
            return {
                rank: self._copies.read(rank, content, arrays) for rank, content in messages.items()
            }
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{self.session.name}: rank {self.session.ranks[self.rank]} cannot decode a"
                f" neighbour's message ({error}). Add weights in the same step on all ranks"
            ) from error
