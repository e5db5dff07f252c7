"""Exchange of Python objects, pickled with cloudpickle into uint8 arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD, place_of
from farandole.core.engine import Engine, Entry
from farandole.job import context
from farandole.job.context import ProcessSet

T = TypeVar("T")
_UNSENT = (
    "ValueError: another rank's object could not be pickled (that rank raises the pickling"
    " error), or a rank could not unpickle it."
)


@documented(
    "init",
    "disagree",
    "set",
    "root",
    _UNSENT,
    example="options = hvd.broadcast_object(options, root_rank=0)",
)
def broadcast_object(
    obj: T, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = WORLD
) -> T:
    """Return ``root_rank``'s ``obj`` on every rank; on ``root_rank``, the same object."""
    engine = context.engine(process_set)
    root_rank = place_of(root_rank, process_set)
    label, serial = _label(engine, "broadcast_object", name)
    if engine.size == 1 and root_rank == 0:
        return obj
    data, error = _pickled(obj) if engine.rank == root_rank else (np.empty(0, dtype=np.uint8), None)
    length = np.array([data.size], dtype=np.int64)
    engine.run([_entry(Kind.BROADCAST, f"{label}.sz", length, DType.INT64, root_rank, serial)])
    if engine.rank != root_rank:
        data = np.empty(int(length[0]), dtype=np.uint8)
    engine.run([_entry(Kind.BROADCAST, f"{label}.t", data, DType.UINT8, root_rank, serial)])
    root = _rank(root_rank, process_set)
    unread: Exception | None = None
    if engine.rank != root_rank:
        try:
            obj = _loaded(data)
        except Exception as why:
            unread = why
    _agree_on_reading(engine, unread, root, label, serial, process_set)
    if error is not None:
        raise error
    return cast(T, _sent(obj, "broadcast_object", root))


@documented(
    "init",
    "disagree",
    "set",
    _UNSENT,
    example="scores = hvd.allgather_object({'rank': hvd.rank()})",
)
def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = WORLD) -> list[T]:
    """Return every rank's ``obj``, in rank order."""
    engine = context.engine(process_set)
    label, serial = _label(engine, "allgather_object", name)
    if engine.size == 1:
        return [obj]
    data, error = _pickled(obj)
    ((flat, sizes),) = engine.run([_entry(Kind.ALLGATHER, label, data, DType.UINT8, 0, serial)])
    if error is not None:
        raise error
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [_gathered(part, _rank(place, process_set)) for place, part in enumerate(parts)]


def _label(engine: Engine, verb: str, name: str | None) -> tuple[str, int]:
    return (f"{verb}.noname", engine.numbers.next()) if name is None else (f"{verb}.{name}", 0)


class _Unsent(NamedTuple):
    """A replacement, for the waiting ranks, for an object that could not be pickled."""

    why: str


def _agree_on_reading(
    engine: Engine,
    unread: Exception | None,
    root: int,
    label: str,
    serial: int,
    process_set: ProcessSet,
) -> None:
    """Raise ValueError on all ranks if any rank could not unpickle the object, so that no rank
    continues alone.
    """
    text = "" if unread is None else f"{type(unread).__name__}: {unread}"
    message = np.frombuffer(bytearray(text, "utf-8", "replace"), dtype=np.uint8)
    ((flat, sizes),) = engine.run(
        [_entry(Kind.ALLGATHER, f"{label}.read", message, DType.UINT8, 0, serial)]
    )
    if not any(sizes):
        return
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    place = next(place for place, size in enumerate(sizes) if size)
    raise ValueError(
        f"broadcast_object: the object of rank {root} cannot be unpickled on rank"
        f" {_rank(place, process_set)}: {parts[place].tobytes().decode()}"
    ) from unread


def _pickled(obj: Any) -> tuple[Any, Exception | None]:
    """Return the pickled object; if pickling fails, a pickled ``_Unsent`` and the error."""
    from farandole.base.pickled import (
        dumps,  # imported here: programs without objects need not load it
    )

    failed: Exception | None = None
    try:
        data = dumps(obj)
    except Exception as error:
        data, failed = (
            dumps(_Unsent(f"a {type(obj).__name__}: {type(error).__name__}: {error}")),
            error,
        )
    return np.frombuffer(bytearray(data), dtype=np.uint8), failed


def _loaded(data: Any) -> Any:
    import cloudpickle

    return cloudpickle.loads(data.data)


def _sent(obj: Any, verb: str, rank: int) -> Any:
    """Return ``obj``. Raises ValueError if it replaces an object that could not be pickled."""
    if isinstance(obj, _Unsent):
        raise ValueError(f"{verb}: the object of rank {rank} cannot be pickled, {obj.why}")
    return obj


def _gathered(data: Any, rank: int) -> Any:
    try:
        obj = _loaded(data)
    except Exception as error:
        raise ValueError(
            f"allgather_object: the object of rank {rank} cannot be unpickled here:"
            f" {type(error).__name__}: {error}"
        ) from error
    return _sent(obj, "allgather_object", rank)


def _rank(place: int, process_set: ProcessSet) -> int:
    """Return the job rank of member ``place`` of the set."""
    return place if process_set is WORLD else (process_set.ranks or range(place + 1))[place]


def _entry(kind: Kind, name: str, array: Any, dtype: DType, root: int, serial: int) -> Entry:
    request = Request(name, kind, dtype, array.shape, root=root)
    return Entry(request, Buffer(array, array, dtype), serial)
