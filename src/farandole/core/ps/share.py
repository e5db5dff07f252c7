"""What one server holds of a group's tensors, at a rank: memory, the places of the pieces in it,
and what a codec makes of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from farandole.base.contracts import Packed, Part, PushCodec
from farandole.base.types import Buffer, DType
from farandole.core.ps.connection import ServerConnection
from farandole.core.ps.layout import Piece, shape_of
from farandole.core.ps.wire import TYPES, Message

if TYPE_CHECKING:
    from farandole.base.types import Array


class Tensor(NamedTuple):
    """A weight, or with ``still`` a statistic, which nobody trains. ``kind``: its type, as numpy
    spells it.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    still: bool


class Sending(NamedTuple):
    """A message to a server, with the arrays that follow it (None: none do), and what a codec made
    of them.
    """

    message: Message
    arrays: Sequence[Array] | None = None
    packed: Sequence[Packed] = ()


class Share:
    """Of ``server``. ``parts``: type and length of its arrays, the last ``statistics`` of which are
    no weights.
    """

    def __init__(
        self,
        server: ServerConnection,
        pieces: Sequence[Piece],
        tensors: Sequence[Tensor],
        codec: PushCodec | None,
    ) -> None:
        self.server = server
        self._codec = codec
        parts = [(kind, still) for still in (False, True) for kind in TYPES]
        of = [(tensor.kind, tensor.still) for tensor in tensors]
        own = {part: [piece for piece in pieces if of[piece.tensor] == part] for part in parts}
        own = {part: found for part, found in own.items() if found}
        self.parts = [
            (kind, sum(piece.end - piece.begin for piece in found))
            for (kind, _), found in own.items()
        ]
        self.statistics = sum(still for _, still in own)
        self.outgoing = [np.zeros(count, dtype=kind) for kind, count in self.parts]
        self.incoming = [np.zeros(count, dtype=kind) for kind, count in self.parts]
        self._places: list[tuple[Piece, int, int]] = []  # with the part, and where it begins in it
        for place, found in enumerate(own.values()):
            begin = 0
            for piece in found:
                self._places.append((piece, place, begin))
                begin += piece.end - piece.begin
        self._coded = self._codec_parts(tensors)

    def _codec_parts(self, tensors: Sequence[Tensor]) -> list[list[Part]]:
        """By type, the pieces of weights as a codec takes them. It keeps what it keeps for each of
        them, whichever server holds it.
        """
        keys = keys_of([tensor.name for tensor in tensors])
        found: list[list[Part]] = [[] for _ in self.parts[: len(self.parts) - self.statistics]]
        for piece, place, begin in self._places:
            if place < len(found):
                tensor = tensors[piece.tensor]
                memory = self.outgoing[place][begin : begin + piece.end - piece.begin]
                key = f"{keys[piece.tensor]}{piece.begin}"
                buffer = Buffer(memory, memory, DType(memory.dtype.name))
                found[place].append(Part(key, shape_of(piece, tensor.shape), buffer))
        return found

    def sending(self, message: Message, rank: int) -> Sending:
        """``message`` with what has been packed: with a codec a push is compressed, and a flush
        brings all that was not sent before.
        """
        if message["do"] == "pull":
            return Sending(message)
        if self._codec is None:
            return Sending(message, self.outgoing)
        whole = message["do"] == "flush"
        packed = [
            self._codec.pack_all(parts) if whole else self._codec.pack(parts, rank)
            for parts in self._coded
        ]
        if not whole:
            message["coded"] = [len(each.payload) for each in packed]
        return Sending(
            message, [*(each.payload for each in packed), *self.outgoing[len(packed) :]], packed
        )

    def arrived(self, sending: Sending, taken: bool) -> None:
        """See ``contracts.PushCodec``."""
        if self._codec is not None:
            for packed in sending.packed:
                self._codec.arrived(packed, taken)

    def pack(self, flat: Sequence[Array]) -> None:
        for (tensor, begin, end), place, start in self._places:
            self.outgoing[place][start : start + end - begin] = flat[tensor][begin:end]

    def unpack(self, flat: Sequence[Array]) -> None:
        for (tensor, begin, end), place, start in self._places:
            flat[tensor][begin:end] = self.incoming[place][start : start + end - begin]


def keys_of(names: Sequence[str]) -> list[str]:
    """What codecs keep of the pieces of these tensors begins with these keys: the same ones where
    other tensors come or go; of tensors with one name, each has its own.
    """
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        keys.append(f"push/{seen[name]}/{name}/")
        seen[name] += 1
    return keys
