"""Frozen nouns that cross rooms: DType, ReduceOp, Kind, Buffer, DeviceBuffer, Request, Response,
Slot.

Nothing here imports numpy: the launcher uses these nouns too, and must start in milliseconds.
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
        """The numpy dtype that holds this type's bits: numpy has no bfloat16, so it travels as
        uint16.
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
    """Reductions, numbered as Horovod numbers them (``hvd.Average == 0``).

    Wires know SUM, MIN, MAX and PRODUCT; AVERAGE is SUM with a scale of 1/size, decided by the
    engine. BAND, BOR and BXOR (bit by bit, of integers) are torch.distributed's; wires take them as
    well.
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
        """What a program gave as ``op=``, by these numbers. Raises ValueError if it is none of
        them.

        Enumerations of others compare equal to their own numbers: torch.distributed.ReduceOp.SUM is
        0 there.
        """
        if isinstance(op, Integral) and not isinstance(op, bool) and op in tuple(cls):
            return cls(int(op))
        raise ValueError(
            f"op={op!r} is not a reduction; use Average, Sum, Adasum, Min, Max or Product, as hvd"
            " has them (hvd.Sum)"
        )


class Kind(IntEnum):
    """The collectives. The names appear in Horovod's error messages. ALLOCATE makes memory on all
    ranks at once.
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

    ``data``: 1-D contiguous array (of ``dtype.storage``) that is read. ``out``: 1-D array of the
    same length and type that is written; the same object as ``data`` when in place.
    """

    data: Array
    out: Array
    dtype: DType

    @property
    def device(self) -> str:
        """Whose memory it is, as a Request says it: CPU is the host's."""
        return "CPU"


class DeviceBuffer(Buffer):
    """Memory of a GPU: ``data`` and ``out`` are flat tensors of the framework, of the dtype
    itself.
    """

    __slots__ = ()

    def with_new_out(self) -> DeviceBuffer:
        """The same with new memory for ``out``."""
        raise NotImplementedError

    @property
    def device(self) -> str:
        return "GPU"


class Sizes(NamedTuple):
    """What may be tuned while a job runs, in bytes: fuse tensors up to ``fusion_threshold``;
    ``bucket_bytes`` is what an optimizer aims at.
    """

    fusion_threshold: int
    bucket_bytes: int


class Request(NamedTuple):
    """One rank's request: everything that all ranks must agree on, and nothing else. Hashable.

    ``shape`` is the local tensor's shape; ``group`` ties the members of a grouped call together (an
    empty string for a lone tensor) and ``group_size`` says how many members there are. ``device``:
    CPU or GPU. ``dense_shape``: of the tensor of which rows are gathered; empty: unknown. ``root``:
    of a broadcast; of an alltoall that is a gather (of another one: -1). ``codec``: what an
    allreduce is compressed by, as "name" or "name:argument"; empty: by nothing.
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
    """Why ranks do not run what they asked for."""

    MISMATCH = "they asked for different things under one name"
    JOINED = "it needs data of all ranks, and one has joined"


class Response(NamedTuple):
    """A decision of all ranks: run these requests now, as one unit, or fail them with ``error``.

    ``names``: the requests, in the order in which every rank runs them. ``requests``: per name,
    what some rank asked for, for ranks that have joined and asked for nothing. ``parts``: per name,
    what each rank contributes: the first dimension (allgather) or its splits (alltoall). ``error``:
    empty, or the text that every rank raises for these names; ``refusal``: of which kind it is.
    ``absent``: ranks that have joined: they have no data for this.
    """

    kind: Kind
    names: tuple[str, ...]
    requests: tuple[Request, ...]
    parts: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    absent: tuple[int, ...] = ()
    refusal: Refusal = Refusal.MISMATCH


class Slot(NamedTuple):
    """A place for one worker: where it runs and who it is there."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    size: int
