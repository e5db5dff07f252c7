"""``net:codec``: a codec for traffic between hosts. Sums within a host are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from farandole.base.contracts import (
    Codec,
    Momentum,
    MomentumAware,
    Part,
    Rescaling,
    Retractable,
    Transport,
    Voting,
)
from farandole.base.types import Buffer, DType
from farandole.core.kernels import quiet, widen
from farandole.errors import SettingsError
from farandole.job.plugins import registry
from farandole.strategies.codecs.base import pieces, wide, write

if TYPE_CHECKING:
    from farandole.base.types import Array


class Net:
    """Compresses between hosts only.

    Ranks that share memory add up their tensors there. Each then owns a slice of the sum, which a
    second codec reduces over the hosts; the owner keeps the residual. If all ranks share memory,
    nothing is compressed.
    """

    name: ClassVar[str] = "net"

    def __init__(self, spec: str) -> None:
        """``spec``: the codec between hosts. Raises SettingsError."""
        if not spec or spec.partition(":")[0] == self.name:
            raise SettingsError(
                f"codec={f'{self.name}:{spec}'!r} is invalid. Name the codec to use between hosts,"
                " as in net:int8"
            )
        self.spec = f"{self.name}:{spec}"
        self._codec: Codec = registry.make("codec", spec)

    @property
    def sent(self) -> int:
        """The number of bytes that this rank has sent to other hosts."""
        return self._codec.sent

    @property
    def saved(self) -> int:
        """The bytes saved in comparison with an allreduce of the same slices in full precision."""
        return self._codec.saved

    @property
    def feedback(self) -> bool:
        """True if the codec keeps residuals."""
        return getattr(self._codec, "feedback", False)

    @property
    def keeps(self) -> bool:
        """True if results for a tensor depend on its earlier reductions."""
        return getattr(self._codec, "keeps", self.feedback)

    @property
    def late(self) -> bool:
        """True if optimizers like Adam learn more slowly with the codec."""
        return getattr(self._codec, "late", False)

    @property
    def votes(self) -> bool:
        """True if results are directions without magnitude."""
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
        if by_hosts is None:  # one rank per host
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

    def follow(self, momenta: Mapping[str, Momentum]) -> None:
        """See ``contracts.MomentumAware``."""
        if isinstance(self._codec, MomentumAware):
            self._codec.follow(momenta)

    def state_dict(self) -> dict[str, Array]:
        """See ``contracts.Codec``."""
        return self._codec.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """See ``contracts.Codec``."""
        self._codec.load_state_dict(state)


def _within(slice_: Array, begin: int, parts: Sequence[Part], kind: DType) -> list[Part]:
    """Return the parts within a slice that begins at element ``begin``, cut to the slice. Complete
    parts keep their shape.
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
