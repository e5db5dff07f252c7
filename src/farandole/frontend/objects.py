"""Python objects between ranks: cloudpickle in uint8 arrays."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from farandole import context
from farandole.context import ProcessSet
from farandole.engine import Engine, Entry
from farandole.frontend.documented import documented
from farandole.frontend.ops import WORLD, place_of
from farandole.types import Buffer, DType, Kind, Request

T = TypeVar("T")


@documented("init", "disagree", "set", "root", example="options = hvd.broadcast_object(options, root_rank=0)")
def broadcast_object(obj: T, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = WORLD) -> T:
    """``root_rank``'s ``obj`` on every rank (there: the object itself)."""
    engine = context.engine(process_set)
    root_rank = place_of(root_rank, process_set)
    label, serial = _label(engine, "broadcast_object", name)
    if engine.size == 1 and root_rank == 0:
        return obj
    data = _pickled(obj) if engine.rank == root_rank else np.empty(0, dtype=np.uint8)
    length = np.array([data.size], dtype=np.int64)
    engine.run([_entry(Kind.BROADCAST, f"{label}.sz", length, DType.INT64, root_rank, serial)])
    if engine.rank != root_rank:
        data = np.empty(int(length[0]), dtype=np.uint8)
    engine.run([_entry(Kind.BROADCAST, f"{label}.t", data, DType.UINT8, root_rank, serial)])
    return obj if engine.rank == root_rank else _unpickled(data)


@documented("init", "disagree", "set", example="scores = hvd.allgather_object({'rank': hvd.rank()})")
def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = WORLD) -> list[T]:
    """Every rank's ``obj``, in rank order."""
    engine = context.engine(process_set)
    label, serial = _label(engine, "allgather_object", name)
    if engine.size == 1:
        return [obj]
    entry = _entry(Kind.ALLGATHER, label, _pickled(obj), DType.UINT8, 0, serial)
    ((flat, sizes),) = engine.run([entry])
    ends = np.cumsum(sizes)
    return [_unpickled(flat[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _label(engine: Engine, verb: str, name: str | None) -> tuple[str, int]:
    return (f"{verb}.noname", engine.numbers.next()) if name is None else (f"{verb}.{name}", 0)


def _pickled(obj: Any) -> Any:
    import cloudpickle  # here: programs that exchange no objects do not pay for it

    return np.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=np.uint8)


def _unpickled(data: Any) -> Any:
    import cloudpickle

    return cloudpickle.loads(data.data)


def _entry(kind: Kind, name: str, array: Any, dtype: DType, root: int, serial: int) -> Entry:
    request = Request(name, kind, dtype, array.shape, root=root)
    return Entry(request, Buffer(array, array, dtype), serial)
