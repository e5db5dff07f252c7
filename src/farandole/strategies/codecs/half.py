"""``fp16`` and ``bf16``: gradients are sent as 16-bit floats. They are summed in float32 and
rounded once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from farandole.base.contracts import Part, Transport
from farandole.base.types import Buffer, DType, ReduceOp
from farandole.core.kernels import narrow_into, quiet, widen
from farandole.strategies.codecs.base import ring_bytes
from farandole.strategies.codecs.pushable import Pushable, check_length

if TYPE_CHECKING:
    from farandole.base.types import Array


class Half(Pushable):
    """Sends 16-bit floats. Tensors of 16 bits are sent unchanged."""

    feedback, gamma = False, 1.0
    dtype: ClassVar[DType]

    def __init__(self) -> None:
        super().__init__()

    def allreduce(self, parts: Sequence[Part], scale: float, transport: Transport) -> None:
        buffers = [part.buffer for part in parts]
        narrow = (
            buffers
            if buffers[0].dtype.is_half
            else [self._narrow(buffer.data) for buffer in buffers]
        )
        transport.allreduce(narrow, ReduceOp.SUM, scale)
        if narrow is not buffers:
            for buffer, small in zip(buffers, narrow, strict=True):
                buffer.out[:] = widen(small.out, self.dtype)
        nbytes, whole = (sum(buffer.data.nbytes for buffer in each) for each in (narrow, buffers))
        self.sent += ring_bytes(nbytes, transport)
        self.saved += ring_bytes(whole, transport) - ring_bytes(nbytes, transport)

    def payload(self, values: Array, parts: Sequence[Part], rank: int) -> Array:
        return self._narrow(values).data.view(np.uint8)

    def unpack(self, payload: Array, out: Array) -> None:
        """See ``contracts.PushCodec``."""
        check_length(payload, len(out) * self.dtype.itemsize)
        out[:] = widen(payload.view(self.dtype.storage), self.dtype)

    def _narrow(self, data: Array) -> Buffer:
        small = np.empty(len(data), self.dtype.storage)
        with quiet():
            narrow_into(small, data.astype(np.float32, copy=False), self.dtype)
        return Buffer(small, small, self.dtype)


class Fp16(Half):
    """Sends float16. Values above 65,504 become infinite, so use it with loss scaling or moderate
    gradients.
    """

    name, dtype = "fp16", DType.FLOAT16


class Bf16(Half):
    """Sends bfloat16: the range of float32 with 8 bits of precision."""

    name, dtype = "bf16", DType.BFLOAT16
