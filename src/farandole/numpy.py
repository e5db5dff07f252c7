"""Collectives on plain arrays, for scripts without a framework: ``import farandole.numpy as
hvd``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole import checks as checks
from farandole.base.types import Buffer, DType
from farandole.core.api import names
from farandole.core.api.array_binding import ArrayBinding, carried
from farandole.core.api.basics import *  # noqa: F403
from farandole.core.api.collectives import Collectives
from farandole.core.api.compression import CastCompressor, Compressor, NoneCompressor
from farandole.core.api.documented import like
from farandole.core.api.gather import gather_by
from farandole.core.api.helpers import print as print  # not in *: it would hide Python's print
from farandole.core.api.helpers import seed_everything as seed_everything
from farandole.core.api.objects import allgather_object as allgather_object
from farandole.core.api.objects import broadcast_object as broadcast_object

if TYPE_CHECKING:
    from farandole.base.types import Array


class _Binding(ArrayBinding):
    def buffer(self, tensor: Any) -> Buffer:
        # Test for ordinary arrays first: naming np.ma loads it, which takes milliseconds.
        if type(tensor) is not np.ndarray and (
            not isinstance(tensor, (np.ndarray, np.generic))
            or isinstance(tensor, np.ma.MaskedArray)
        ):
            raise TypeError(
                f"a numpy array is needed, not {type(tensor).__name__}. Use np.asarray(value)"
            )
        if not tensor.dtype.isnative:
            raise ValueError(
                f"arrays of type {tensor.dtype.str!r} do not have this machine's byte order. Use"
                " array.astype(array.dtype.newbyteorder('='))."
            )
        return super().buffer(np.asarray(tensor))


class _Arrays(Collectives[Any, Any]):
    """Collectives that check for writable arrays in place, and move arrays of dtypes without
    arithmetic.
    """

    @like(Collectives.allreduce_async_)
    def allreduce_async_(self, tensor: Any, *args: Any, **options: Any) -> int:
        return super().allreduce_async_(_writable(tensor), *args, **options)

    @like(Collectives.allreduce_)
    def allreduce_(self, tensor: Any, *args: Any, **options: Any) -> Any:
        return super().allreduce_(_writable(tensor), *args, **options)

    @like(Collectives.grouped_allreduce_async_)
    def grouped_allreduce_async_(self, tensors: Iterable[Any], *args: Any, **options: Any) -> int:
        return super().grouped_allreduce_async_(
            [_writable(tensor) for tensor in tensors], *args, **options
        )

    @like(Collectives.broadcast_)
    def broadcast_(self, tensor: Any, *args: Any, **options: Any) -> Any:
        return super().broadcast_(_writable(tensor), *args, **options)

    @like(Collectives.broadcast_async_)
    def broadcast_async_(self, tensor: Any, *args: Any, **options: Any) -> int:
        return super().broadcast_async_(_writable(tensor), *args, **options)

    @like(Collectives.allgather)
    def allgather(self, tensor: Any, *args: Any, **options: Any) -> Any:
        return super().allgather(_carried(tensor), *args, **options).view(tensor.dtype)

    @like(Collectives.broadcast)
    def broadcast(self, tensor: Any, *args: Any, **options: Any) -> Any:
        return super().broadcast(_carried(tensor), *args, **options).view(tensor.dtype)

    @like(Collectives.alltoall)
    def alltoall(self, tensor: Any, splits: Any = None, *args: Any, **options: Any) -> Any:
        found = super().alltoall(_carried(tensor), splits, *args, **options)
        return (
            found.view(tensor.dtype) if splits is None else (found[0].view(tensor.dtype), found[1])
        )


def _writable(tensor: Any) -> Any:
    if not isinstance(tensor, np.ndarray) or not tensor.flags.writeable:
        what = (
            "is read-only"
            if isinstance(tensor, np.ndarray)
            else f"is a {type(tensor).__name__}, not an array"
        )
        raise ValueError(
            f"the array {what}, and cannot be changed in place. Use the function without the _"
        )
    return tensor


def _carried(tensor: Any) -> Any:
    return carried(tensor) if isinstance(tensor, np.ndarray) and tensor.dtype.isnative else tensor


_binding = _Binding()


def _typed() -> Collectives[Array | np.generic, Array]:
    """Return the collectives with types for type checkers, which look through an annotation but not
    through this function.
    """
    return _Arrays(_binding)


_collectives = _typed()

allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
gather = gather_by(alltoall)
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
barrier = _collectives.barrier
join = _collectives.join
poll = _collectives.poll
synchronize = _collectives.synchronize


class Compression:
    """Compression of arrays for the exchange: ``none``, ``fp16``, or a custom subclass of
    ``Compressor``.
    """

    Compressor = Compressor
    none = NoneCompressor

    class fp16(CastCompressor):
        binding = _binding
        dtype = DType.FLOAT16


if TYPE_CHECKING:
    from farandole.core.api import elastic as elastic
else:

    def __getattr__(name: str) -> Any:
        if name == "elastic":  # loaded when it is used, because most jobs have a fixed size
            from farandole.core.api import elastic

            return elastic
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:
    __all__ = names.listed(
        names.BASICS,
        names.COLLECTIVES,
        names.IN_PLACE,
        names.ASYNCHRONOUS,
        names.ASYNCHRONOUS_IN_PLACE,
        names.OBJECTS,
        (
            "Compression",
            "elastic",
            "gather",
            "seed_everything",
        ),
    )
