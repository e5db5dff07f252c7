"""A strategy of a new kind: each rank moves halfway to its left neighbour's weights, which a codec
may round in transit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.types import Buffer, DType
from farandole.strategies import Codec, Encoding, ExchangeContext, Part, Peers, PushCodec, Strategy
from farandole.strategies.encodings import WholeEncoding
from farandole.strategies.peers import EnginePeers, PeerSession
from farandole.strategies.references import SenderReference

if TYPE_CHECKING:
    from farandole.base.types import Array


class RoundedReference(SenderReference):
    """No common values: a codec rounds each message separately."""

    sending = "each sends to its left neighbour alone"

    def encoding(self, codec: Codec | None, owner: object) -> Encoding:
        return RoundedEncoding(codec) if isinstance(codec, PushCodec) else WholeEncoding()


class RoundedEncoding(WholeEncoding):
    def __init__(self, codec: PushCodec) -> None:
        self._codec = codec

    def exchange(
        self,
        strategy: Strategy,
        weights: Sequence[Array],
        slots: Sequence[Sequence[Array]],
        step: int,
        context: ExchangeContext,
    ) -> bool:
        strategy.exchange(weights, slots, RoundedPeers(self.session, context, self._codec), step)
        return False


class RoundedPeers(EnginePeers):
    def __init__(self, session: PeerSession, context: ExchangeContext, codec: PushCodec) -> None:
        super().__init__(session, context)
        self._codec = codec

    def swap(self, arrays: Sequence[Array], to: Sequence[int]) -> dict[int, list[Array]]:
        return super().swap([self._rounded(array) for array in arrays], to)

    def _rounded(self, array: Array) -> Array:
        flat = np.ravel(array).copy()
        part = Part("", array.shape, Buffer(flat, flat, DType(flat.dtype.name)))
        packed = self._codec.pack([part], self.rank)
        self._codec.arrived(packed, taken=False)
        rounded = np.empty_like(flat)
        self._codec.unpack(packed.payload, rounded)
        return rounded.reshape(array.shape)


class Shift:
    name = "shift"
    epochs = False
    reference = RoundedReference()
    slots: tuple[str, ...] = ()

    def __init__(self, every: int = 1) -> None:
        self.every = every

    @classmethod
    def parse(cls, argument: str) -> Shift:
        return cls(int(argument or 1))

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.every}"

    def due(self, step: Any) -> Any:
        return step % self.every == 0

    def exchange(
        self, weights: Sequence[Array], slots: Sequence[Sequence[Array]], peers: Peers, step: int
    ) -> None:
        right = (peers.rank + 1) % peers.size
        for received in peers.swap(weights, [right] if right != peers.rank else []).values():
            for weight, other in zip(weights, received, strict=True):
                weight += (other - weight) / 2
