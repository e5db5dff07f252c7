"""Asynchronous collectives, inside and outside programs.

Inside a program, the start and the wait are two host calls. They run in order, but only the wait
blocks, so ranks may start named collectives in different orders if they start all of them before
the first wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from farandole.base.types import Kind
from farandole.core.api.documented import collective, documented
from farandole.core.api.ops import WORLD, place_of, reduce_op
from farandole.jax.calls import Collective
from farandole.jax.calls import poll as pending_on_host
from farandole.jax.collectives import as_arrays
from farandole.jax.differentiable import splits_of
from farandole.jax.primitive import host_call, wait
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array

Shapes = tuple[tuple[int, ...], ...]


class _What(NamedTuple):
    """A started collective and its arrays."""

    call: Collective
    shapes: Shapes
    dtypes: tuple[Any, ...]


class TracedHandle(NamedTuple):
    """The handle of an asynchronous collective inside a program, for ``synchronize``."""

    number: Any
    what: _What


class _Start(NamedTuple):
    """The start of a collective. See ``primitive.HostCall``."""

    call: Collective
    elementwise: bool | None = None
    in_place: bool = False

    def __str__(self) -> str:
        return f"{self.call.kind.name.lower()}_async"

    def shapes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        self.call.shapes(shapes, dtypes)
        return [((), np.dtype(np.int32))]

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        # XLA's memory is only valid during the call
        return [np.array(self.call.start([array.copy() for array in arrays]), dtype=np.int32)]


class _Finish(NamedTuple):
    """The wait for a collective. See ``primitive.HostCall``."""

    what: _What
    elementwise: bool | None = None
    in_place: bool = False

    def __str__(self) -> str:
        return f"synchronize({self.what.call})"

    def shapes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        return self.what.call.shapes(self.what.shapes, self.what.dtypes)

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        call, shapes, dtypes = self.what
        return call.finish(int(arrays[0]), shapes, dtypes, jitted=True)


# outside programs: the collective, and the sharding of its results
_started: dict[int, tuple[_What, Any]] = {}


@collective("op", example="handle = hvd.allreduce_async(tensor)\ntotal = hvd.synchronize(handle)")
def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Start ``allreduce``; ``synchronize(handle)`` returns the new array."""
    how = reduce_op(average, op), prescale_factor, postscale_factor
    return _start(Collective(Kind.ALLREDUCE, name, process_set, *how), [tensor])


@collective("op")
def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = WORLD,
) -> Any:
    """Start ``grouped_allreduce``: one handle for all arrays."""
    how = reduce_op(average, op), prescale_factor, postscale_factor
    return _start(Collective(Kind.ALLREDUCE, name, process_set, *how, grouped=True), tensors)


@collective("rows")
def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = WORLD) -> Any:
    """Start ``allgather``."""
    return _start(Collective(Kind.ALLGATHER, name, process_set), [tensor])


@collective("rows")
def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Start ``grouped_allgather``: one handle for all arrays."""
    return _start(Collective(Kind.ALLGATHER, name, process_set, grouped=True), tensors)


@collective("root")
def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Start ``broadcast``."""
    place_of(root_rank, process_set)
    return _start(Collective(Kind.BROADCAST, name, process_set, root=root_rank), [tensor])


@collective("rows", "splits")
def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = WORLD
) -> Any:
    """Start ``alltoall``."""
    dealt = None if splits is None else splits_of(splits)
    return _start(Collective(Kind.ALLTOALL, name, process_set, splits=dealt), [tensor])


@collective("op", "rows", op="Average (the default) or Sum.")
def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Start ``reducescatter``."""
    how = reduce_op(None, op), prescale_factor, postscale_factor
    return _start(Collective(Kind.REDUCESCATTER, name, process_set, *how), [tensor])


@collective("op", "rows", op="Average (the default) or Sum.")
def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = WORLD,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Start ``grouped_reducescatter``: one handle for all arrays."""
    how = reduce_op(None, op), prescale_factor, postscale_factor
    return _start(Collective(Kind.REDUCESCATTER, name, process_set, *how, grouped=True), tensors)


@documented(
    "ValueError: inside a traced program, where no operation has run yet.",
    handle="from a function whose name ends in _async, outside of programs.",
)
def poll(handle: int) -> bool | None:
    """Return whether the collective of ``handle`` is done; None if the handle is unknown or was
    synchronized.
    """
    if isinstance(handle, TracedHandle):
        raise ValueError("poll returns no result while a program is being traced. Use synchronize")
    return pending_on_host(handle)


@documented("failed", handle="from a function whose name ends in _async.")
def synchronize(handle: Any) -> Any:
    """Wait for a collective and return its output; None if the handle is unknown or was
    synchronized. Raises HorovodInternalError if the collective failed.
    """
    if isinstance(handle, TracedHandle):
        return _shown(handle.what.call, host_call(_Finish(handle.what), [handle.number]))
    if handle not in _started:
        return None
    (call, shapes, dtypes), place = _started.pop(handle)
    results = call.finish(handle, shapes, dtypes, jitted=False)
    return _shown(call, [jax.device_put(result, place) for result in results])


def _start(call: Collective, tensors: Sequence[Any]) -> Any:
    arrays, call = as_arrays(tensors), call.placed()
    what = _What(
        call, tuple(array.shape for array in arrays), tuple(array.dtype for array in arrays)
    )
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return TracedHandle(host_call(_Start(call), arrays)[0], what)
    wait()
    handle = call.start([np.asarray(array) for array in arrays])
    _started[handle] = what, arrays[0].sharding if arrays else None
    return handle


def _shown(call: Collective, results: Sequence[Any]) -> Any:
    if call.grouped:
        return list(results)
    return results[0] if call.splits is None else (results[0], results[1])
