"""Averages in pairs by a codec: CHOCO-SGD (Koloskova, Stich & Jaggi, 2019; see ``neighbours``)
between two ranks at a time, as they meet.

Two ranks that average keep copies of each other's weights and of their own, as far as these were
sent to that partner. Each sends the codec's of how far it has gone from its copy, and goes half of
the way between the two copies, times ``gamma``: what one of them gains the other one loses, so the
sum stays, whatever the codec leaves out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.contracts import PushCodec
from farandole.core.ps.pairs import SharedWeights
from farandole.strategies.neighbours import Copies

if TYPE_CHECKING:
    from farandole.base.types import Array

# a message is no longer than so many times the weights, and as many bytes for each of them
_ROOM = 4
_EACH = 1 << 12


class _Pair:
    """``own``: this rank's weights as the partner knows them. ``sent``, ``heard``: messages to it,
    and of it.
    """

    def __init__(self, codec: PushCodec, rank: int) -> None:
        self.copies = Copies(codec, rank)
        self.own: list[Array] = []
        self.sent = self.heard = 0


class CodedAverages:
    """See ``ps.pairs.Averages``. Statistics travel whole.

    ``codec``: its bytes are counted there; what it keeps is kept here, for it works in the
    background. ``keys``: of the weights; ``rank``: this rank's number in the job; ``gamma``: None
    is what suits the codec.
    """

    def __init__(
        self,
        shared: SharedWeights,
        codec: PushCodec,
        keys: Sequence[str],
        rank: int,
        gamma: float | None = None,
    ) -> None:
        self._shared, self._keys, self._rank, self._gamma = shared, keys, rank, gamma
        self._told, self._codec = codec, copy.deepcopy(codec)
        self._codec.sent = self._codec.saved = 0
        self._pairs: dict[int, _Pair] = {}
        self._ways: tuple[Sequence[Array], Sequence[Array]] = (), ()  # of the last ``halve``

    def greeting(self, rank: int) -> dict[str, Any]:
        return {"heard": self._pair(rank).heard}

    def greeted(self, rank: int, greeting: dict[str, Any]) -> None:
        pair, heard = self._pair(rank), int(greeting["heard"])
        if heard != pair.sent:  # a message got lost, or one of both has begun anew
            pair.copies.lost()
            pair.sent = heard

    def lend(self, rank: int) -> Sequence[Array]:
        return [self._message(rank), *map(np.copy, self._shared.statistics)]

    def room(self, sizes: Sequence[int]) -> Sequence[Array]:
        most = _ROOM * sum(array.nbytes for array in self._shared.trained) + _EACH * (
            len(self._keys) + 1
        )
        statistics = self._shared.statistics
        if (
            not sizes
            or not 0 <= sizes[0] <= most
            or [*sizes[1:]] != [array.nbytes for array in statistics]
        ):
            raise ValueError(f"a message of {sizes} bytes does not fit")
        return [np.empty(sizes[0], np.uint8), *map(np.empty_like, statistics)]

    def halve(self, rank: int, lent: Sequence[Array]) -> Sequence[Array]:
        theirs = self._heard(rank, lent[0])
        answer = self._message(rank)  # first: the partner's way begins at what this rank has sent
        rest = [
            (other - own) / 2 for own, other in zip(self._shared.statistics, lent[1:], strict=True)
        ]
        self._ways = self._ways_to(rank, theirs), rest
        self._shared.go(*self._ways)
        return [answer, *(-way for way in rest)]

    def undo(self, rank: int) -> None:
        ways, rest = self._ways
        self._shared.go([-way for way in ways], [-way for way in rest], averages=-1)

    def move(self, rank: int, given: Sequence[Array]) -> None:
        self._shared.go(self._ways_to(rank, self._heard(rank, given[0])), given[1:])

    def forget(self) -> None:
        self._pairs.clear()

    def _pair(self, rank: int) -> _Pair:
        if rank not in self._pairs:
            self._pairs[rank] = _Pair(self._codec, self._rank)
        return self._pairs[rank]

    def _message(self, rank: int) -> Array:
        pair, weights = self._pair(rank), self._shared.trained
        if not pair.own:
            pair.own = [weight.copy() for weight in weights]
        message = pair.copies.message(weights, pair.own, [f"{rank}/{key}" for key in self._keys], 1)
        pair.sent += 1
        self._told.sent += self._codec.sent
        self._told.saved += self._codec.saved
        self._codec.sent = self._codec.saved = 0
        return message

    def _heard(self, rank: int, message: Array) -> list[Array]:
        """The partner's copy."""
        pair = self._pair(rank)
        try:
            theirs = pair.copies.read(rank, message, self._shared.trained)
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"rank {self._rank} cannot read what rank {rank} sent of its weights ({error}): all"
                " ranks must train the same model, with the same codec"
            ) from error
        pair.heard += 1
        return theirs

    def _ways_to(self, rank: int, theirs: Sequence[Array]) -> list[Array]:
        """Towards a partner, half of the way between the copies at most."""
        pair = self._pair(rank)
        half = (pair.copies.gamma(self._shared.trained) if self._gamma is None else self._gamma) / 2
        return [
            own.dtype.type(half) * (other - own)
            for own, other in zip(pair.own, theirs, strict=True)
        ]
