"""Copies of neighbours' weights, for codecs that send differences: CHOCO-SGD (Koloskova, Stich &
Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed Communication",
2019).

A rank and its neighbours keep a copy of the rank's weights as sent so far. The rank sends the
encoded difference of its weights from that copy, and all of them add it to the copy, so the codec's
residual remains in the next difference. Ranks then move by a fraction (``gamma``) of the distance
from their own copy to their neighbours' copies. This preserves the mean over all ranks, regardless
of the values that the codec omits.
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

_GAMMA = 0.1  # for codecs without a ``consensus_step``
# int64: whether uncompressed copies come first; the bytes of the differences in float32 and in
# float64
_HEAD = 3
_TYPES = (DType.FLOAT32, DType.FLOAT64)
_NOTHING = np.empty(0, dtype=np.uint8)


class Copies:
    """Copies of one optimizer's weights on one rank. It keeps the neighbours' copies; the caller
    keeps the rank's own.
    """

    def __init__(self, codec: PushCodec, rank: int) -> None:
        self._codec = codec
        self._rank = rank
        self._known = 0  # digest of this rank's copy at the neighbours
        self._of: dict[int, list[Array]] = {}

    def gamma(self, weights: Sequence[Array]) -> float:
        """Return the fraction of the distance to move, for weights of these shapes."""
        codec = self._codec
        return (
            codec.consensus_step([weight.shape for weight in weights])
            if isinstance(codec, Consensus)
            else _GAMMA
        )

    def message(
        self, weights: Sequence[Array], own: Sequence[Array], keys: Sequence[str], times: int
    ) -> Array:
        """Return the message to ``times`` neighbours, as uint8, and update this rank's copy as they
        will.

        If the neighbours do not have this copy (it is new, or from a checkpoint), the message
        begins with the uncompressed copy. ``keys``: the keys of the codec's state for the weights.
        """
        for weight, copy in zip(weights, own, strict=True):
            if not _finite(copy):  # no difference would make it finite
                np.copyto(copy, weight)
        is_new = _digest(own) != self._known
        whole = joined(own) if is_new else _NOTHING
        if whole.size:
            for _ in range(times):  # extra bytes that the codec causes
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
        """Send this rank's copy uncompressed with the next message: the last one did not reach all
        neighbours.
        """
        self._known = 0

    def read(self, rank: int, message: Array, like: Sequence[Array]) -> list[Array]:
        """Add the differences in ``message`` to the copy of ``rank``'s weights and return that
        copy, which the caller must not write to.

        ``like``: weights of the same shapes and dtypes. Raises ValueError for a message that does
        not match them.
        """
        begin = _HEAD * 8
        is_whole, *sizes = (
            message[:begin].copy().view(np.int64).tolist() if len(message) >= begin else [0, -1, -1]
        )
        nbytes = sum(array.nbytes for array in like) if is_whole else 0
        if len(message) != begin + nbytes + sum(sizes) or (rank not in self._of and not is_whole):
            raise ValueError(
                f"a message has {len(message)} bytes, which does not match the weights"
            )
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
        """Encode ``changes``. They include the values that the codec omitted before, so it keeps no
        residuals.
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
    """Return a digest of contents, shapes and dtypes. Never 0."""
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
    """Return the bytes of all arrays as one uint8 array."""
    return np.concatenate([_bytes(array) for array in arrays]) if arrays else _NOTHING


def cut(memory: Array, like: Sequence[Array]) -> list[Array]:
    """Return copies of ``memory``'s parts with the shapes and dtypes of ``like``."""
    found, begin = [], 0
    for array in like:
        end = begin + array.nbytes
        found.append(memory[begin:end].copy().view(array.dtype).reshape(array.shape))
        begin = end
    return found
