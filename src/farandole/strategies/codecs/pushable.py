"""The base of codecs that also compress pushes to parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from farandole.base.contracts import Packed, Part
from farandole.core.kernels import quiet
from farandole.strategies.codecs.base import FlatCodec

if TYPE_CHECKING:
    from farandole.base.types import Array


class Pushable(FlatCodec):
    """A codec for allreduces and pushes. It adopts the residual of a push once the push has
    arrived.
    """

    # See ``consensus_step``: with larger steps, ranks diverge if the codec sends few elements.
    gamma: float = 0.1

    def payload(self, values: Array, parts: Sequence[Part], rank: int) -> Array:
        """Return the encoding of ``values`` (flat), as uint8. With ``feedback``, the residual is
        left in ``values``.
        """
        raise NotImplementedError

    def consensus_step(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """See ``contracts.Consensus``."""
        return self.gamma

    def unpack(self, payload: Array, out: Array) -> None:
        """See ``contracts.PushCodec``."""
        raise NotImplementedError

    def pack(self, parts: Sequence[Part], rank: int) -> Packed:
        """See ``contracts.PushCodec``."""
        return self._packed(parts, lambda values: self.payload(values, parts, rank))

    def pack_all(self, parts: Sequence[Part]) -> Packed:
        """See ``contracts.PushCodec``."""
        return self._packed(parts, _everything)

    def arrived(self, packed: Packed, taken: bool) -> None:
        """See ``contracts.PushCodec``."""
        if taken:
            self._state.update(packed.kept)
        self.sent += len(packed.payload)
        self.saved += packed.whole - len(packed.payload)

    def _packed(self, parts: Sequence[Part], send: Callable[[Array], Array]) -> Packed:
        """Return the payload of ``send`` and the state to keep. The codec's state does not change:
        ``send`` may replace its arrays, but never writes to them.
        """
        before, self._state = self._state, dict(self._state)
        try:
            with quiet():
                values = self._values(parts)
                payload = send(values)
                if self.feedback:
                    self._keep(values, parts)
            kept = {
                name: array for name, array in self._state.items() if before.get(name) is not array
            }
        finally:
            self._state = before
        return Packed(payload, kept, sum(part.buffer.data.nbytes for part in parts))


def check_length(payload: Array, wanted: int) -> None:
    """Raise ValueError unless ``payload`` has ``wanted`` bytes."""
    if len(payload) != wanted:
        raise ValueError(f"the payload has {len(payload)} bytes instead of {wanted}")


def _everything(values: Array) -> Array:
    payload: Array = values.view(np.uint8).copy()
    values[:] = 0
    return payload
