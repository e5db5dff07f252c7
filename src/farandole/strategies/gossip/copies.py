"""What neighbours know of each other's weights where a codec sends differences: CHOCO-SGD
(Koloskova, Stich & Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication", 2019).

A rank and its neighbours keep a copy of its weights, as far as it has sent them. What it sends next
is the codec's of how far it has gone from that copy, and they all add it there, so what a codec
leaves out is still in the next difference. Ranks then go some of the way (``gamma``) towards the
copies of their neighbours, counted from their own: the mean over all ranks stays, whatever the
codec leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from farandole.base.contracts import Consensus, Packed, Part, PushCodec
from farandole.base.types import Buffer, DType
from farandole.core.kernels import quiet
from farandole.strategies.codecs.base import KEPT

if TYPE_CHECKING:
    from farandole.base.types import Array

_GAMMA = 0.1  # for codecs that say nothing
# int64: are the copies sent whole, first? The bytes of the differences in float32, and in float64
_HEAD = 3
_TYPES = (DType.FLOAT32, DType.FLOAT64)
_NOTHING = np.empty(0, dtype=np.uint8)


class Copies:
    """Of one optimizer's weights, on one rank: those of neighbours are kept here; its own one
    belongs to the caller.
    """

    def __init__(self, codec: PushCodec, rank: int) -> None:
        self._codec = codec
        self._rank = rank
        self._known = 0  # digest of the own copy, as neighbours have it
        self._of: dict[int, list[Array]] = {}

    def gamma(self, weights: Sequence[Array]) -> float:
        """How much of the way a rank goes, for weights like these."""
        codec = self._codec
        return (
            codec.consensus_step([weight.shape for weight in weights])
            if isinstance(codec, Consensus)
            else _GAMMA
        )

    def message(
        self, weights: Sequence[Array], own: Sequence[Array], keys: Sequence[str], times: int
    ) -> Array:
        """What goes to ``times`` neighbours, as uint8. Brings the own copy forward, as it will be
        there.

        A copy that is not what they have (it is new, or of a checkpoint) goes whole, first.
        ``keys``: of the weights, for what the codec keeps.
        """
        for weight, copy in zip(weights, own, strict=True):
            if not _finite(copy):  # no difference brings it back
                np.copyto(copy, weight)
        is_new = _digest(own) != self._known
        whole = joined(own) if is_new else _NOTHING
        if whole.size:
            for _ in range(times):  # bytes that weights without a codec do not cost
                self._codec.arrived(Packed(whole, {}, 0), taken=False)
        payloads = []
        for kind in _TYPES:
            places = _places(weights, kind)
            with quiet():
                changes = [weights[place] - own[place] for place in places]
            payload = self._packed(changes, kind, keys, places, times)
            self._add([own[place] for place in places], payload)
            payloads.append(payload)
        self._known = _digest(own)
        head = np.array([is_new, *map(len, payloads)], dtype=np.int64)
        return np.concatenate([head.view(np.uint8), whole, *payloads])

    def lost(self) -> None:
        """The last message did not get to all: the own copy goes whole, with the next."""
        self._known = 0

    def read(self, rank: int, message: Array, like: Sequence[Array]) -> list[Array]:
        """The copy of ``rank``'s weights, with what it has sent now. It stays here, and is not to
        be written to.

        ``like``: weights of these shapes and types. ValueError for a message of other weights.
        """
        begin = _HEAD * 8
        is_whole, *sizes = (
            message[:begin].copy().view(np.int64).tolist() if len(message) >= begin else [0, -1, -1]
        )
        nbytes = sum(array.nbytes for array in like) if is_whole else 0
        if len(message) != begin + nbytes + sum(sizes) or (rank not in self._of and not is_whole):
            raise ValueError(f"a message of {len(message)} bytes does not fit")
        if is_whole:
            self._of[rank] = cut(message[begin : begin + nbytes], like)
            begin += nbytes
        copy = self._of[rank]
        for kind, size in zip(_TYPES, sizes, strict=True):
            self._add([copy[place] for place in _places(copy, kind)], message[begin : begin + size])
            begin += size
        return copy

    def _packed(
        self,
        changes: Sequence[Array],
        kind: DType,
        keys: Sequence[str],
        places: Sequence[int],
        times: int,
    ) -> Array:
        """What was left out before is in ``changes`` already: the codec's own residuals are not
        kept.
        """
        parts = []
        for place, change in zip(places, changes, strict=True):
            flat = np.ascontiguousarray(change).reshape(-1)
            parts.append(Part(keys[place], change.shape, Buffer(flat, flat, kind)))
        if not sum(change.size for change in changes):
            return _NOTHING
        packed = self._codec.pack(parts, self._rank)
        kept = {
            name: array for name, array in packed.kept.items() if name.partition("/")[0] not in KEPT
        }
        for _ in range(times):
            self._codec.arrived(packed._replace(kept=kept), taken=True)
        return packed.payload

    def _add(self, arrays: Sequence[Array], payload: Array) -> None:
        if not sum(array.size for array in arrays):
            return
        flat = np.empty(sum(array.size for array in arrays), arrays[0].dtype)
        self._codec.unpack(payload, flat)
        begin = 0
        for array in arrays:
            with quiet():
                array += flat[begin : begin + array.size].reshape(array.shape)
            begin += array.size


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _digest(arrays: Sequence[Array]) -> int:
    """Also of their shapes and types. Never 0."""
    found = crc32(repr([(array.shape, array.dtype.str) for array in arrays]).encode())
    for array in arrays:
        found = crc32(_bytes(array).data, found)
    return found or 1


def _finite(array: Array) -> bool:
    with quiet():
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


def _places(arrays: Sequence[Array], kind: DType) -> list[int]:
    return [place for place, array in enumerate(arrays) if array.dtype == kind.storage]


def joined(arrays: Sequence[Array]) -> Array:
    """All of them, as uint8."""
    return np.concatenate([_bytes(array) for array in arrays]) if arrays else _NOTHING


def cut(memory: Array, like: Sequence[Array]) -> list[Array]:
    """``memory`` as arrays of the shapes and types of ``like``."""
    found, begin = [], 0
    for array in like:
        end = begin + array.nbytes
        found.append(memory[begin:end].copy().view(array.dtype).reshape(array.shape))
        begin = end
    return found
