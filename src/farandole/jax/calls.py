"""Collectives on numpy arrays: the host's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax

from farandole.base.types import Buffer, DType, Kind, ReduceOp
from farandole.core.api.array_binding import ArrayBinding, carried
from farandole.core.api.collectives import Collectives
from farandole.core.api.ops import INT32_MAX, WORLD, factor
from farandole.core.engine.check import no_rows
from farandole.core.kernels import shares
from farandole.errors import RequestError
from farandole.job import context
from farandole.job.context import ProcessSet

if TYPE_CHECKING:
    from farandole.base.types import Array

Shapes = Sequence[tuple[int, ...]]
_REDUCED = frozenset(dtype.value for dtype in DType)
_MOVED = _REDUCED | {"uint16", "uint32", "uint64", "complex64"}


class _Host(Collectives[Any, Any]):
    """The collectives on arrays; allgather also returns the number of rows of each rank."""

    def _gathered(self, tensor: Any, buffer: Buffer, result: Any) -> Any:
        return super()._gathered(tensor, buffer, result), tuple(result[1])


_host = _Host(ArrayBinding())
poll, meet, last_to_join = _host.poll, _host.barrier, _host.join


def check_dtypes(kind: Kind, dtypes: Sequence[Any], name: str | None) -> None:
    """Raise ValueError for an unsupported dtype."""
    known = _REDUCED if kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER) else _MOVED
    for dtype in dtypes:
        if str(dtype) in known:
            continue
        cure = "Reduce its real and imaginary parts" if "complex" in str(dtype) else "Cast it first"
        if str(dtype).startswith("key<"):
            cure = "Take jax.random.key_data(key)"
        raise ValueError(
            f"{kind.name.lower()}{'' if name is None else f' {name!r}'}: arrays of type {dtype} are"
            f" not supported, only {', '.join(sorted(known))}. {cure}."
        )


@dataclass(frozen=True)
class Collective:
    """One collective, or several of a kind as one unit. See ``primitive.HostCall``."""

    kind: Kind
    name: str | None = None
    process_set: ProcessSet = WORLD
    op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    splits: tuple[int, ...] | None = None
    # for allgather: each rank's rows, per array; None: equal to this rank's
    rows: tuple[tuple[int, ...], ...] | None = None
    grouped: bool = False
    place: tuple[int, int] | None = None  # rank and size for which shapes and gradients were made

    def __post_init__(self) -> None:
        object.__setattr__(self, "prescale", factor(self.prescale, "prescale_factor"))
        object.__setattr__(self, "postscale", factor(self.postscale, "postscale_factor"))

    @property
    def in_place(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}({'' if self.name is None else f'name={self.name!r}'})"

    @property
    def elementwise(self) -> bool | None:
        if self.kind is Kind.ALLREDUCE:
            return None if self.op is ReduceOp.ADASUM else True
        return self.kind is Kind.BROADCAST

    def placed(self) -> Collective:
        """Return the collective for the current rank and size, if they matter."""
        if self.kind is Kind.ALLREDUCE:
            return self
        engine = context.engine(self.process_set)
        return replace(self, place=(engine.rank, engine.size))

    def renamed(self, suffix: str, **changes: Any) -> Collective:
        """Return the collective under a name with ``suffix``."""
        return replace(self, name=None if self.name is None else self.name + suffix, **changes)

    # Shapes, as far as known to one rank.

    def shapes(self, shapes: Shapes, dtypes: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
        check_dtypes(self.kind, dtypes, self.name)
        if self.kind in (Kind.ALLREDUCE, Kind.BROADCAST):
            return list(zip(shapes, dtypes, strict=True))
        if not all(map(len, shapes)):
            raise RequestError(no_rows(self.kind, self.name or ".noname"))
        engine = context.engine(self.process_set)
        if self.kind is Kind.ALLGATHER:
            every = self.expected(shapes)
            return [
                ((sum(rows), *shape[1:]), d)
                for rows, shape, d in zip(every, shapes, dtypes, strict=True)
            ]
        if self.kind is Kind.REDUCESCATTER:
            own = [shares(shape[0], engine.size)[engine.rank] for shape in shapes]
            return [
                ((count, *shape[1:]), dtype)
                for count, shape, dtype in zip(own, shapes, dtypes, strict=True)
            ]
        if self.splits is not None:
            raise ValueError(
                f"{self} with splits returns a shape that depends on the other ranks, which is"
                " impossible in a jitted program. Call it outside of jit, or pad the rows to"
                " equal parts and omit splits"
            )
        if shapes[0][0] % engine.size:
            raise RequestError(
                f"{self}: splits not provided, but first dimension of tensor is not an even"
                f" multiple of the number of workers. ({shapes[0][0]} rows, {engine.size} workers)"
            )
        return list(zip(shapes, dtypes, strict=True))

    def expected(self, shapes: Shapes) -> tuple[tuple[int, ...], ...]:
        """Return the rows of each rank, per array."""
        size = context.engine(self.process_set).size
        return self.rows or tuple((shape[0],) * size for shape in shapes)

    # On the host.

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        self._check(arrays)
        arguments: dict[str, Any] = {"name": self.name, "process_set": self.process_set}
        if self.kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
            arguments.update(
                op=self.op, prescale_factor=self.prescale, postscale_factor=self.postscale
            )
            return self._call(self.kind.name.lower(), arrays, arguments)
        small = [carried(array) for array in arrays]
        if self.kind is Kind.BROADCAST:
            results = [_host.broadcast(array, self.root, **arguments) for array in small]
        elif self.kind is Kind.ALLGATHER:
            pairs = self._call("allgather", small, arguments)
            if jitted:
                self._check_rows([array.shape for array in arrays], [rows for _, rows in pairs])
            results = [result for result, _ in pairs]
        elif self.splits is None:
            results = [_host.alltoall(small[0], **arguments)]
        else:
            result, received = _host.alltoall(small[0], self.splits, **arguments)
            return [result.view(arrays[0].dtype), received]
        return [result.view(array.dtype) for result, array in zip(results, arrays, strict=True)]

    def _check(self, arrays: Sequence[Array]) -> None:
        check_dtypes(self.kind, [array.dtype for array in arrays], self.name)
        if max(self.splits or (0,)) > INT32_MAX and not jax.config.jax_enable_x64:
            raise RequestError(
                f"{self}: splits {list(self.splits or ())} exceed int32, the widest integer of JAX"
                " here. Set jax_enable_x64, or send fewer rows to each rank"
            )
        engine = context.engine(self.process_set)
        if self.place not in (None, (engine.rank, engine.size)):
            rank, size = self.place or (0, 0)
            raise ValueError(
                f"this program was compiled for rank {rank} of {size}, but this is rank"
                f" {engine.rank} of {engine.size}. Call jax.clear_caches() after the ranks change"
            )

    def _call(self, verb: str, arrays: Sequence[Array], arguments: dict[str, Any]) -> list[Any]:
        if not self.grouped:
            return [getattr(_host, verb)(arrays[0], **arguments)]
        return list(getattr(_host, f"grouped_{verb}")(arrays, **arguments))

    # In two parts.

    def start(self, arrays: Sequence[Array]) -> int:
        """Start the collective and return its handle for ``finish``. The arrays must not change
        until then.
        """
        self._check(arrays)
        arguments: dict[str, Any] = {"name": self.name, "process_set": self.process_set}
        if self.kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
            arguments.update(
                op=self.op, prescale_factor=self.prescale, postscale_factor=self.postscale
            )
        elif self.kind is Kind.BROADCAST:
            arguments.update(root_rank=self.root)
        elif self.kind is Kind.ALLTOALL:
            arguments.update(splits=self.splits)
        small = (
            arrays
            if self.kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER)
            else [carried(array) for array in arrays]
        )
        verb = f"{self.kind.name.lower()}_async"
        if not self.grouped:
            return int(getattr(_host, verb)(small[0], **arguments))
        return int(getattr(_host, f"grouped_{verb}")(small, **arguments))

    def finish(
        self, handle: int, shapes: Shapes, dtypes: Sequence[Any], jitted: bool
    ) -> list[Array]:
        """Wait, and return the results of ``run`` for arrays of these shapes and dtypes."""
        found = _host.synchronize(handle)
        results = list(found) if self.grouped else [found]
        if self.kind is Kind.ALLGATHER:
            if jitted:
                self._check_rows(shapes, [rows for _, rows in results])
            results = [result for result, _ in results]
        elif self.splits is not None:
            result, received = found
            return [result.view(dtypes[0]), received]
        return [result.view(dtype) for result, dtype in zip(results, dtypes, strict=True)]

    def _check_rows(self, shapes: Shapes, found: Sequence[tuple[int, ...]]) -> None:
        for expected, rows in zip(self.expected(shapes), found, strict=True):
            if rows != expected:
                raise ValueError(
                    f"ranks have {list(rows)} rows, but a jitted program needs the same number on"
                    " all ranks. Pad the arrays, or call allgather outside of jit"
                )
