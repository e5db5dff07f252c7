"""Encodings of the weights of one optimizer: uncompressed, or compressed by a codec.

A codec sends differences from values shared by the ranks; see ``references``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import Codec, ExchangeContext, PushCodec, Strategy
from farandole.checks.exchange import all_equal
from farandole.core.ps.share import keys_of
from farandole.strategies.codecs import claim
from farandole.strategies.codecs.base import KEPT
from farandole.strategies.mean import MeanReducer
from farandole.strategies.peers import EnginePeers, PeerSession

if TYPE_CHECKING:
    from farandole.base.types import Array

# Prefixes of names in a codec's state: changes since the last exchange, distances from a centre.
CHANGE = "change/"
DISTANCE = "distance/"


class WholeEncoding:
    """The base of encodings: weights are sent uncompressed. See ``contracts.Encoding``."""

    slots: tuple[str, ...] = ()
    push_codec: PushCodec | None = None
    session: PeerSession

    def bind(self, session: PeerSession) -> None:
        """See ``contracts.Encoding``."""
        self.session = session

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """See ``contracts.Encoding``."""
        peers = EnginePeers(self.session, context)
        strategy.exchange(weights, slots, peers, step)
        return peers.statistics_travelled

    def average(
        self,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        statistics: Sequence[Array],
    ) -> None:
        """See ``contracts.Encoding``."""
        if weights or statistics:
            self.session.mean([*weights, *statistics])
        self.averaged(weights, slots)

    def averaged(self, weights: Sequence[Array], slots: Sequence[Sequence[Array]]) -> None:
        """See ``contracts.Encoding``."""

    def reset(self) -> None:
        """See ``contracts.Encoding``."""

    def other_weights(self) -> None:
        """See ``contracts.Encoding``."""

    def forget(self) -> None:
        """See ``contracts.Encoding``."""


class CodecState:
    """A codec's state for one optimizer's weights. ``owner``: see ``codecs.claim``."""

    def __init__(self, codec: Codec, owner: object) -> None:
        self._codec = codec
        self._owner = owner
        self._keys: set[str] = set()

    def add(self, keys: Iterable[str]) -> None:
        """Count these keys among the optimizer's."""
        self._keys.update(keys)

    def claim(self, keys: Sequence[str]) -> None:
        """Add these keys to the optimizer's. Raises ValueError if another optimizer uses one of
        them.
        """
        self.add(keys)
        claim(self._codec, self._owner, keys)

    def forget(self, keys: Iterable[str] | None = None) -> None:
        """Drop the codec's state for these keys; None: for all of the optimizer's keys.

        A key that ends in a slash drops all keys with that prefix. The state of other optimizers
        stays.
        """
        forgotten = self._keys if keys is None else keys
        dropped = {f"{kind}/{key}" for key in forgotten for kind in KEPT}
        prefixes = tuple(name for name in dropped if name.endswith("/"))
        state = self._codec.state_dict().items()
        self._codec.load_state_dict(
            {
                name: array
                for name, array in state
                if name not in dropped and not name.startswith(prefixes)
            }
        )


class MeanEncoding(WholeEncoding):
    """The base of encodings for strategies that average.

    The codec reduces each rank's differences from arrays that should be the same on all ranks.
    These differ on a rank that had joined or began with different weights, so the ranks compare
    them before each exchange.
    """

    prefix: str

    def __init__(self, codec: Codec, owner: object) -> None:
        self.state = CodecState(codec, owner)
        self._codec = codec
        self._mean: MeanReducer
        # the number of shared arrays, and their digest
        self._known: tuple[int, int] | None = None

    def bind(self, session: PeerSession) -> None:
        """See ``contracts.Encoding``."""
        super().bind(session)
        options = session.sum_options._replace(codec=self._codec)
        self._mean = MeanReducer(f"{session.name}.coded", options, self.prefix)

    def reset(self) -> None:
        """See ``contracts.Encoding``."""
        self._known = None

    def other_weights(self) -> None:
        """See ``contracts.Encoding``."""
        self._known = None

    def forget(self) -> None:
        """See ``contracts.Encoding``."""
        self.state.forget()

    def keys(self, weights: Sequence[Array], context: ExchangeContext) -> list[str]:
        """Return the keys of the codec's state for the weights."""
        return [f"{self.prefix}{name}" for name in context.names_of(weights)]

    def peers(self, context: ExchangeContext, near: Sequence[Array]) -> EnginePeers:
        """Return peers that average differences from ``near``."""
        return _CodedMeanPeers(self.session, context, self._mean, near)

    def same_on_all_ranks(self, near: Sequence[Array]) -> bool:
        """Return whether all ranks have these arrays. Collective."""
        if self._known is None or len(near) != self._known[0]:
            self._known = len(near), zlib.crc32(b"".join(array.tobytes() for array in near))
        name = f"{self.session.name}.last"
        return bool(all_equal(self.session.engine, name, [self._known[1]])[0])

    def exchanged(self, near: Sequence[Array], step: int, *, same: bool) -> None:
        """Record that all ranks now have the same arrays. ``same``: they were the same before,
        too.
        """
        before = self._known[1] if same and self._known is not None else 0
        self._known = len(near), zlib.crc32(repr((before, step)).encode())


class ChangeEncoding(MeanEncoding):
    """Encodes the changes since the last exchange, whose weights are kept in a further slot. If
    that slot differs between ranks, the weights are sent uncompressed.
    """

    slots: tuple[str, ...] = ("weights",)
    prefix = CHANGE

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """See ``contracts.Encoding``."""
        *own, last = slots
        self.state.claim(self.keys(weights, context))
        same = self.same_on_all_ranks(last)
        peers = self.peers(context, last) if same else EnginePeers(self.session, context)
        strategy.exchange(weights, own, peers, step)
        for array, weight in zip(last, weights, strict=True):
            np.copyto(array, weight)
        self.exchanged(last, step, same=same)
        return peers.statistics_travelled


class DistanceEncoding(MeanEncoding):
    """Encodes the distances from a strategy's first slot.

    If that slot differs between ranks, all ranks take its mean. The codec keeps no residual: the
    unsent part of a distance remains in the next distance.
    """

    prefix = DISTANCE

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """See ``contracts.Encoding``."""
        first = slots[0]
        self.state.add(self.keys(weights, context))
        same = self.same_on_all_ranks(first)
        if not same:
            self.session.mean(first, context.names)
        peers = self.peers(context, first)
        strategy.exchange(weights, slots, peers, step)
        self.state.forget([self.prefix])
        self.exchanged(first, step, same=same)
        return peers.statistics_travelled


class PushEncoding(WholeEncoding):
    """Encodes pushes to parameter servers. The residual of a weight is kept for its next push, if
    weights have names.
    """

    def __init__(self, codec: PushCodec, owner: object) -> None:
        self.push_codec = codec
        self._state = CodecState(codec, owner)
        self._named = False

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        """See ``contracts.Encoding``."""
        self._named = context.names is not None
        self._state.claim(keys_of(context.names_of(weights)))
        return super().exchange(strategy, weights, slots, step, context)

    def reset(self) -> None:
        """See ``contracts.Encoding``."""
        self._state.forget()

    def other_weights(self) -> None:
        """See ``contracts.Encoding``."""
        if not self._named:
            self._state.forget()

    def forget(self) -> None:
        """See ``contracts.Encoding``."""
        self._state.forget()


class _CodedMeanPeers(EnginePeers):
    """Peers that average differences from ``near``, compressed by a codec."""

    def __init__(
        self,
        session: PeerSession,
        context: ExchangeContext,
        mean: MeanReducer,
        near: Sequence[Array],
    ) -> None:
        super().__init__(session, context)
        self._mean = mean
        self._near = near

    def average(self, arrays: Sequence[Array]) -> None:
        """See ``contracts.Peers``."""
        if [array.shape for array in arrays] != [array.shape for array in self._near]:
            super().average(arrays)
            return
        for array, near in zip(arrays, self._near, strict=True):
            np.subtract(array, near, out=array)
        self._mean(arrays, self.context.names)
        for array, near in zip(arrays, self._near, strict=True):
            np.add(array, near, out=array)
