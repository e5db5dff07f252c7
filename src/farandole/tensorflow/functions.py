"""Collectives on tensors without gradients: immediate in eager mode, operations in a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from farandole.base.types import DType, ReduceOp
from farandole.core.api.array_binding import ArrayBinding, carried
from farandole.core.api.collectives import Collectives
from farandole.core.api.compression import CastCompressor, Compressor, NoneCompressor
from farandole.core.api.ops import INT32_MAX
from farandole.errors import RequestError
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.tensorflow import driver, graph

if TYPE_CHECKING:
    from farandole.base.types import Array

collectives: Collectives[Any, Any] = Collectives(ArrayBinding())


class _Casts:
    """Facts about tensors that ``CastCompressor`` needs."""

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        to = tf.as_dtype(dtype.value if isinstance(dtype, DType) else dtype)
        return tf.cast(tensor, to) if tensor.dtype.is_floating and tensor.dtype != to else tensor


_casts: Any = _Casts()


class Compression:
    """Compression of tensors for the exchange: ``none``, ``fp16``, ``bf16``, or a custom subclass
    of ``Compressor``.
    """

    Compressor = Compressor
    none = NoneCompressor

    class fp16(CastCompressor):
        __module__ = "farandole.tensorflow"  # the public path, for pickles
        binding = _casts
        dtype = DType.FLOAT16

    class bf16(CastCompressor):
        __module__ = "farandole.tensorflow"  # the public path, for pickles
        binding = _casts
        dtype = DType.BFLOAT16


class Names:
    """The name of a call: the caller's name, and whether name scopes are included."""

    def __init__(self, kind: str, name: str | None, ignore_name_scope: bool = False) -> None:
        self.kind, self.name, self.ignore = kind, name, ignore_name_scope

    def of(self, tensor: Any, process_set: ProcessSet) -> str | None:
        """Return the name by which the ranks of ``process_set`` agree; None for an unnamed call in
        eager mode, where calls are counted.

        In a graph an unnamed call is named for its tensor, and a name that the process set already
        uses gets a number. The name is therefore the same on all ranks that build the same graph,
        even repeatedly. Nested functions count as one graph, because two calls of one name may run
        at the same time. Each process set counts separately: a rank may be in several sets, whose
        other members do not build the same calls.
        """
        if tf.executing_eagerly():
            return self.name
        current = tf.compat.v1.get_default_graph()
        name = self.name or f"Horovod{self.kind}_{_plain(tensor.name)}"
        scope = "" if self.ignore else current.get_name_scope()
        full = f"{scope}/{name}" if scope else name
        # the number counts functions of this process
        function = re.sub(r"_\d+$", "", getattr(current, "name", "") or "")
        if function and not self.ignore:
            full = f"{function}/{full}"
        return _unused(_outermost(current), process_set, full)

    def and_(self, suffix: str) -> Names:
        """Return the names for a call's companion, such as its gradient."""
        return Names(self.kind, None if self.name is None else self.name + suffix, self.ignore)


_used: WeakKeyDictionary[Any, dict[tuple[int, ...], set[str]]] = WeakKeyDictionary()


def _outermost(current: Any) -> Any:
    """Return the graph of the function that eager code calls, if ``current`` is the graph of a
    function nested in it.
    """
    while hasattr(outer := getattr(current, "outer_graph", None), "outer_graph"):
        current = outer
    return current


def _unused(current: Any, process_set: ProcessSet, name: str) -> str:
    """Return ``name``, or the first of ``name_1``, ``name_2``, ... that no call of ``process_set``
    uses in this graph.
    """
    used = _used.setdefault(current, {}).setdefault(tuple(process_set.ranks or ()), set())
    numbered = (f"{name}_{number}" for number in count(1))
    unused = next(each for each in chain([name], numbered) if each not in used)
    used.add(unused)
    return unused


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


class _Running:
    """A ``graph.Task``: a collective that was started."""

    def __init__(self, handle: int, dtypes: Sequence[Any]) -> None:
        self._handle, self._dtypes = handle, dtypes

    def when_done(self, call: Callable[[], None]) -> None:
        collectives.when_done(self._handle, call)
        driver.drive(partial(collectives.drive, self._handle))

    def result(self) -> list[Array]:
        return _typed(collectives.synchronize(self._handle), self._dtypes)


def _run(
    operation: str,
    tensors: Sequence[Any],
    forms: Sequence[graph.Form],
    *,
    names: Names,
    process_set: ProcessSet,
    grouped: bool = False,
    moves: bool = False,
    complete: Callable[[Sequence[Array]], list[Any]] | None = None,
    **options: Any,
) -> list[Any]:
    """Return the tensors, of ``forms``, from an operation of ``collectives``.

    ``moves``: the operation only moves data, so any type of fixed size works. ``complete``: returns
    the operation's arguments, given the arrays.
    """
    dtypes = [dtype.as_numpy_dtype for dtype, _ in forms]
    options |= {"name": names.of(tensors[0], process_set), "process_set": process_set}

    def call(method: Callable[..., Any], arrays: Sequence[Array]) -> Any:
        if moves:
            arrays = [carried(array) for array in arrays]
        if complete is not None:
            arrays = complete(arrays)
        return method(list(arrays), **options) if grouped else method(*arrays, **options)

    def start(*arrays: Array) -> _Running:
        return _Running(call(getattr(collectives, f"{operation}_async"), arrays), dtypes)

    if not tf.executing_eagerly():
        _check_registered(process_set)
        return graph.run(f"hvd.{operation}", start, tensors, forms)
    result = call(getattr(collectives, operation), [graph.array(tensor) for tensor in tensors])
    return [tf.convert_to_tensor(array) for array in _typed(result, dtypes)]


def _check_registered(process_set: ProcessSet) -> None:
    """Raise ValueError when the graph is built, before it runs."""
    if process_set is not context.global_process_set:
        process_set.size()


def _typed(result: Any, dtypes: Sequence[Any]) -> list[Array]:
    arrays = result if isinstance(result, (list, tuple)) else [result]
    return [
        # numbers of rows are int64 where int32 is too narrow
        array.view(dtype) if array.itemsize == np.dtype(dtype).itemsize else array
        for array, dtype in zip(arrays, dtypes, strict=True)
    ]


def join() -> Any:
    """Join; see ``mpi_ops.join``."""
    if tf.executing_eagerly():
        return tf.constant(collectives.join(), tf.int32)

    def start() -> graph.Call:
        return graph.Call(lambda: [np.int32(collectives.join())])

    return graph.run("hvd.join", start, [], [(tf.int32, [])], in_order=True)[0]


def barrier(process_set: ProcessSet) -> Any:
    """Wait for all ranks; see ``mpi_ops.barrier``."""
    if tf.executing_eagerly():
        return collectives.barrier(process_set)

    def meet() -> list[Any]:
        collectives.barrier(process_set)
        return [np.bool_(True)]

    return graph.run("hvd.barrier", lambda: graph.Call(meet), [], [(tf.bool, [])], in_order=True)[
        0
    ].op


def _alike(tensors: Sequence[Any]) -> list[graph.Form]:
    return [(tensor.dtype, tensor.shape) for tensor in tensors]


def _other_rows(tensors: Sequence[Any]) -> list[graph.Form]:
    """Return forms with an unknown number of rows."""
    return [
        (
            tensor.dtype,
            tensor.shape if tensor.shape.rank in (None, 0) else [None, *tensor.shape[1:]],
        )
        for tensor in tensors
    ]


def reduce(
    tensors: Sequence[Any],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    names: Names,
    process_set: ProcessSet,
    grouped: bool,
) -> list[Any]:
    """Reduce (allreduce) one tensor, or with ``grouped`` several as a unit, to new tensors."""
    return _run(
        "grouped_allreduce" if grouped else "allreduce",
        tensors,
        _alike(tensors),
        grouped=grouped,
        names=names,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        process_set=process_set,
    )


def gather(
    tensors: Sequence[Any], names: Names, process_set: ProcessSet, grouped: bool
) -> list[Any]:
    """Gather (allgather); see ``reduce``."""
    return _run(
        "grouped_allgather" if grouped else "allgather",
        tensors,
        _other_rows(tensors),
        grouped=grouped,
        moves=True,
        names=names,
        process_set=process_set,
    )


def gather_rows(
    tensors: Sequence[Any], dense_shape: Sequence[int], names: Names, process_set: ProcessSet
) -> list[Any]:
    """Gather the parts of a sparse tensor: see ``Collectives.gather_rows``."""
    return _run(
        "gather_rows",
        tensors,
        _other_rows(tensors),
        grouped=True,
        moves=True,
        names=names,
        process_set=process_set,
        dense_shape=dense_shape,
    )


def spread(tensor: Any, root: int, names: Names, process_set: ProcessSet) -> Any:
    """Return ``root``'s tensor (broadcast)."""
    (copy,) = _run(
        "broadcast",
        [tensor],
        _alike([tensor]),
        moves=True,
        names=names,
        root_rank=root,
        process_set=process_set,
    )
    return copy


def deal(tensor: Any, splits: Any, names: Names, process_set: ProcessSet) -> list[Any]:
    """Return the rows that this rank received, and their number from each rank (alltoall). In a
    graph, raises RequestError on a rank that sends 2^31 rows or more to one rank.
    """
    in_graph = not tf.executing_eagerly()

    def complete(arrays: Sequence[Array]) -> list[Any]:
        array, *given = arrays
        size = context.engine(process_set).size
        if not given and array.ndim and not len(array) % size:
            given = [np.full(size, len(array) // size, np.int64)]
        # the engine reports other errors
        if in_graph and given and given[0].size and given[0].max() > INT32_MAX:
            raise RequestError(
                f"alltoall in a graph returns numbers of rows as int32, and splits"
                f" {given[0].tolist()} exceed it. Call it eagerly, or send at most {INT32_MAX} rows"
                " to each rank"
            )
        return [array, *given]

    inputs = [tensor] if splits is None else [tensor, splits]
    forms = [*_other_rows([tensor]), (tf.int32, [None])]
    return _run(
        "alltoall",
        inputs,
        forms,
        moves=True,
        complete=complete,
        names=names,
        process_set=process_set,
    )


def scatter(
    tensors: Sequence[Any],
    op: ReduceOp,
    prescale: float,
    postscale: float,
    names: Names,
    process_set: ProcessSet,
    grouped: bool,
) -> list[Any]:
    """Reduce and scatter (reducescatter); see ``reduce``."""
    return _run(
        "grouped_reducescatter" if grouped else "reducescatter",
        tensors,
        _other_rows(tensors),
        grouped=grouped,
        names=names,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        process_set=process_set,
    )
