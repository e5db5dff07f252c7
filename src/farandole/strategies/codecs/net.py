"""``net:codec``: a codec for what goes between hosts; within one, sums are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from farandole.base.contracts import Codec, Part, Rescaling, Retractable, Transport, Voting
from farandole.base.types import Buffer, DType
from farandole.core.kernels import quiet, widen
from farandole.errors import SettingsError
from farandole.job.plugins import registry
from farandole.strategies.codecs.base import pieces, wide, write

if TYPE_CHECKING:
    from farandole.base.types import Array


class Net:
    """Ranks that share memory add up there; each then has a slice of their sum, which another codec
    adds up over the hosts. What is not sent is kept by the rank that has the slice. Where all ranks
    share memory, nothing is compressed.
    """

    name: ClassVar[str] = "net"

    def __init__(self, spec: str) -> None:
        """``spec``: of the other codec. Raises SettingsError."""
        if not spec or spec.partition(":")[0] == self.name:
            raise SettingsError(
                f"codec={f'{self.name}:{spec}'!r}: name the codec between the hosts, as in net:int8"
            )
        self.spec = f"{self.name}:{spec}"
        self._codec: Codec = registry.make("codec", spec)

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to other hosts."""
        return self._codec.sent

    @property
    def saved(self) -> int:
        """Bytes that an all-reduce of the same slices in full precision would have sent more."""
        return self._codec.saved

    @property
    def feedback(self) -> bool:
        """Is kept what is not sent?"""
        return getattr(self._codec, "feedback", False)

    @property
    def keeps(self) -> bool:
        """Do results of a tensor depend on what was added up of it before?"""
        return getattr(self._codec, "keeps", self.feedback)

    @property
    def votes(self) -> bool:
        """Are results directions, without a size?"""
        return isinstance(self._codec, Voting) and self._codec.votes

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        """See ``contracts.Codec``."""
        dtype = parts[0].buffer.dtype
        kind = DType(wide(dtype).name)
        whole = np.empty(sum(len(part.buffer.data) for part in parts), kind.storage)
        for part, place in pieces(whole, parts):
            place[:] = widen(part.buffer.data, dtype) if dtype.is_half else part.buffer.data

        def between(slice_: Array, begin: int, hosts: Transport) -> None:
            within = _within(slice_, begin, parts, kind)
            if within:
                self._codec.allreduce(within, 1.0, hosts)

        by_hosts = getattr(transport, "by_hosts", None)
        if by_hosts is None:  # every rank is a host of its own
            between(whole, 0, transport)
        else:
            by_hosts(whole, kind, between)
        with quiet():
            write(whole, parts, scale)

    def retract(self, keys: Sequence[str]) -> None:
        """See ``contracts.Retractable``."""
        if isinstance(self._codec, Retractable):
            self._codec.retract(keys)

    def rescale(self, keys: Sequence[str], factor: float) -> None:
        """See ``contracts.Rescaling``."""
        if isinstance(self._codec, Rescaling):
            self._codec.rescale(keys, factor)

    def state_dict(self) -> dict[str, Array]:
        """See ``contracts.Codec``."""
        return self._codec.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """See ``contracts.Codec``."""
        self._codec.load_state_dict(state)


def _within(slice_: Array, begin: int, parts: Sequence[Part], kind: DType) -> list[Part]:
    """The parts as far as they are in the slice of all elements that begins there; whole ones keep
    their shape.
    """
    found, first = [], 0
    for part in parts:
        length = len(part.buffer.data)
        low, high = max(first - begin, 0), min(first + length - begin, len(slice_))
        if low < high:
            piece = slice_[low:high]
            shape = part.shape if high - low == length else (high - low,)
            found.append(Part(part.key, shape, Buffer(piece, piece, kind), part.given))
        first += length
    return found
