"""One server's share of a group's tensors, on a rank: its memory, the pieces' places, and their
codec.
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
    """A weight, or with ``still`` an untrained statistic. ``kind``: its dtype in numpy's
    notation.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    still: bool


class Sending(NamedTuple):
    """A message to a server, the arrays that follow it (None: no arrays), and the packed form of
    these arrays.
    """

    message: Message
    arrays: Sequence[Array] | None = None
    packed: Sequence[Packed] = ()


class Share:
    """The share of ``server``. ``parts``: type and length of its arrays; the last ``statistics``
    are untrained.
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
        # piece, index of its part, offset in the part
        self._places: list[tuple[Piece, int, int]] = []
        for place, found in enumerate(own.values()):
            begin = 0
            for piece in found:
                self._places.append((piece, place, begin))
                begin += piece.end - piece.begin
        self._coded = self._codec_parts(tensors)

    def _codec_parts(self, tensors: Sequence[Tensor]) -> list[list[Part]]:
        """Return the pieces of weights as inputs of a codec, by type. The codec's state for each
        piece is kept when the piece moves to another server.
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
        """Return ``message`` with the packed arrays. With a codec, a push is compressed, and a
        flush sends all residuals.
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
        """Report an arrival to the codec (see ``contracts.PushCodec``)."""
        if self._codec is not None:
            for packed in sending.packed:
                self._codec.arrived(packed, taken)

    @property
    def trained(self) -> list[tuple[str, int]]:
        """Type and length of the arrays of weights."""
        return self.parts[: len(self.parts) - self.statistics]

    def optimizer_memory(self, kinds: int) -> list[Array]:
        """Return memory for the state of the server's optimizer: its arrays by kind and part."""
        return [np.zeros(count, dtype=kind) for _ in range(kinds) for kind, count in self.trained]

    def pack_optimizer(self, memory: Sequence[Array], kept: Sequence[Sequence[Array]]) -> None:
        """Copy this share of ``kept``, the flat arrays of all weights by kind, to ``memory``."""
        for number, flat in enumerate(kept):
            for piece, part, start in self._trained_places():
                mine = memory[number * len(self.trained) + part]
                mine[start : start + piece.end - piece.begin] = flat[piece.tensor][
                    piece.begin : piece.end
                ]

    def unpack_optimizer(self, memory: Sequence[Array], kept: Sequence[Sequence[Array]]) -> None:
        """Copy ``memory`` to this share of ``kept``; see ``pack_optimizer``."""
        for number, flat in enumerate(kept):
            for piece, part, start in self._trained_places():
                mine = memory[number * len(self.trained) + part]
                flat[piece.tensor][piece.begin : piece.end] = mine[
                    start : start + piece.end - piece.begin
                ]

    def _trained_places(self) -> list[tuple[Piece, int, int]]:
        return [each for each in self._places if each[1] < len(self.trained)]

    def pack(self, flat: Sequence[Array]) -> None:
        for (tensor, begin, end), place, start in self._places:
            self.outgoing[place][start : start + end - begin] = flat[tensor][begin:end]

    def unpack(self, flat: Sequence[Array]) -> None:
        for (tensor, begin, end), place, start in self._places:
            flat[tensor][begin:end] = self.incoming[place][start : start + end - begin]


def keys_of(names: Sequence[str]) -> list[str]:
    """Return the prefixes of codec state keys for the pieces of these tensors. They do not change
    when other tensors are added or removed. Tensors with the same name get different prefixes.
    """
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        keys.append(f"push/{seen[name]}/{name}/")
        seen[name] += 1
    return keys
