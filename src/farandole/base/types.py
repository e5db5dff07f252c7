"""Immutable types shared by packages: DType, ReduceOp, Kind, Buffer, DeviceBuffer, Request,
Response, Slot.

This module must not import numpy: the launcher uses these types and must start in milliseconds.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class DType(str, Enum):
    """Element types that every wire can reduce. The value is the name used in error messages."""

    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BOOL = "bool"

    @property
    def storage(self) -> str:
        """The numpy dtype that holds this type's bits. numpy has no bfloat16, so uint16 holds
        it.
        """
        return "uint16" if self is DType.BFLOAT16 else self.value

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def is_half(self) -> bool:
        """True for the 16-bit floats, which are summed in float32."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_float(self) -> bool:
        return self.is_half or self in (DType.FLOAT32, DType.FLOAT64)


_ITEMSIZE = {
    DType.UINT8: 1,
    DType.INT8: 1,
    DType.INT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.BOOL: 1,
}


class ReduceOp(IntEnum):
    """Reductions, numbered as in Horovod (``hvd.Average == 0``).

    Wires implement SUM, MIN, MAX and PRODUCT. The engine turns AVERAGE into SUM with a scale of
    1/size. BAND, BOR and BXOR (bitwise, integers only) are for torch.distributed, and wires
    implement them too.
    """

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
    BAND = 6
    BOR = 7
    BXOR = 8

    @classmethod
    def given(cls, op: Any) -> ReduceOp:
        """Convert the ``op`` argument of a program. Raises ValueError for any other value.

        Members of other enumerations are rejected because their numbers differ:
        torch.distributed.ReduceOp.SUM is 0.
        """
        if isinstance(op, Integral) and not isinstance(op, bool) and op in tuple(cls):
            return cls(int(op))
        raise ValueError(
            f"op={op!r} is not a reduction; use hvd.Average, Sum, Adasum, Min, Max or Product"
        )


class Kind(IntEnum):
    """The collectives. Their names appear in Horovod's error messages.

    ALLOCATE allocates memory on all ranks collectively.
    """

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
    ALLOCATE = 7


class Buffer(NamedTuple):
    """Memory of one tensor.

    ``data`` is a contiguous 1-D array (of ``dtype.storage``) to read from. ``out`` is a 1-D array
    of the same length and type to write to; it is the same object as ``data`` for in-place
    operations.
    """

    data: Array
    out: Array
    dtype: DType

    @property
    def device(self) -> str:
        """The memory's device as in ``Request.device``: CPU or GPU."""
        return "CPU"


class DeviceBuffer(Buffer):
    """Memory of a GPU. ``data`` and ``out`` are the framework's flat tensors, of the dtype
    itself.
    """

    __slots__ = ()

    def with_new_out(self) -> DeviceBuffer:
        """Return a copy of this buffer with new memory for ``out``."""
        raise NotImplementedError

    @property
    def device(self) -> str:
        return "GPU"


class Sizes(NamedTuple):
    """Sizes in bytes that may be tuned while a job runs.

    Tensors are fused up to ``fusion_threshold``; optimizers fill buckets of about ``bucket_bytes``.
    """

    fusion_threshold: int
    bucket_bytes: int


class Request(NamedTuple):
    """One rank's request: exactly the properties on which all ranks must agree. Hashable.

    - ``shape``: The local tensor's shape.
    - ``group``, ``group_size``: The name of a grouped call, empty for a single tensor, and the
      number of its members.
    - ``device``: CPU or GPU.
    - ``dense_shape``: The shape of the tensor whose rows are gathered; empty if unknown.
    - ``root``: The root of a broadcast, or of an alltoall that is a gather; -1 for other alltoalls.
    - ``codec``: The codec of an allreduce, as "name" or "name:argument"; empty for none.
    """

    name: str
    kind: Kind
    dtype: DType = DType.FLOAT32
    shape: tuple[int, ...] = ()
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    group: str = ""
    group_size: int = 1
    device: str = "CPU"
    codec: str = ""
    dense_shape: tuple[int, ...] = ()


class Refusal(Enum):
    """The reason why ranks refuse a requested collective."""

    MISMATCH = "their requests under one name differ"
    JOINED = "it needs data from all ranks, and one has joined"


class Response(NamedTuple):
    """A decision of all ranks: run these requests now, as one unit, or fail them with ``error``.

    - ``names``: The requests, in the order in which every rank runs them.
    - ``requests``: Per name, some rank's request, for ranks that have joined and have none.
    - ``parts``: Per name, each rank's contribution: its first dimension (allgather) or its splits
      (alltoall).
    - ``error``: The text of the error that every rank raises for these names, or empty.
    - ``refusal``: The kind of the error.
    - ``absent``: Ranks that have joined and contribute no data.
    """

    kind: Kind
    names: tuple[str, ...]
    requests: tuple[Request, ...]
    parts: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    absent: tuple[int, ...] = ()
    refusal: Refusal = Refusal.MISMATCH


class Slot(NamedTuple):
    """A place for one rank, with the rank's numbers."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    size: int
