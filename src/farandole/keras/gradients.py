"""The exchange of one optimizer's gradients, on whatever backend Keras has."""

from __future__ import annotations

import functools
import importlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from farandole import context
from farandole.context import ProcessSet
from farandole.engine import Entry
from farandole.frontend import serials
from farandole.frontend.compression import NoneCompressor
from farandole.frontend.exchange import Exchange
from farandole.keras import notes
from farandole.types import Buffer, DType, Kind, ReduceOp, Request

if TYPE_CHECKING:
    from farandole.engine import Engine
    from farandole.types import Array

    Values = Callable[[], "list[Array] | None"]


def backend() -> Any:
    """The file of this folder that is named for Keras's backend."""
    return importlib.import_module(f"farandole.keras.{keras.backend.backend()}")


class Gradients:
    """What becomes of the gradients of one optimizer."""

    def __init__(
        self, op: ReduceOp, predivide: float, compression: Any, process_set: ProcessSet, sparse_as_dense: bool,
        scale_local: bool, shard: bool,
    ) -> None:  # fmt: skip
        self.process_set, self.shard = process_set, shard
        self.factor = 1.0  # what results are multiplied with
        self.variables: list[Any] = []  # those that the gradients at hand belong to
        self.local_variables: list[Any] = []
        self.local_layers: list[Any] = []
        self.outside = False  # somebody else has exchanged them already
        self._op, self._predivide, self._compression = op, predivide, compression
        self._sparse_as_dense, self._scale_local = sparse_as_dense, scale_local
        self._applying = False
        self._exchange: tuple[Any, Exchange] | None = None

    def shared(self) -> bool:
        """Is there another rank to exchange gradients with?"""
        if not context.is_initialized() or context.size() == 1:
            return False
        return self.process_set.included() and self.process_set.size() > 1

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Inside, Keras has gradients that it may or may not apply, if it accumulates them."""
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    def reduced(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks (those of local variables: this rank's), for ``self.variables``."""
        found: list[Any] = backend().apart(self._of_all, optimizer, grads)
        return found

    def _of_all(self, optimizer: Any, grads: Sequence[Any]) -> list[Any]:
        if self.outside:
            return list(grads)
        if not self.shared():
            return list(grads) if self.factor == 1.0 else [keras.ops.multiply(grad, self.factor) for grad in grads]
        local = {optimizer._var_key(variable) for variable in self.local()}
        keys = [optimizer._var_key(variable) for variable in self.variables]
        common = [number for number, key in enumerate(keys) if key not in local]
        results = list(grads)
        names = [name_of(self.variables[number]) for number in common]
        reduced = self._reduced(optimizer, [grads[number] for number in common], names)
        for number, grad in zip(common, reduced, strict=True):
            results[number] = grad
        factor = self.factor / (self.process_set.size() if self._scale_local else 1)
        for number in set(range(len(results))) - set(common) if factor != 1.0 else ():
            results[number] = keras.ops.multiply(results[number], factor)
        return results

    def local(self) -> list[Any]:
        """The variables that are left to each rank: those of local layers that are not trained (frozen ones,
        statistics), too."""
        return [*self.local_variables, *(each for layer in self.local_layers for each in layer.weights)]

    def _reduced(self, optimizer: Any, grads: list[Any], names: list[str]) -> list[Any]:
        if not grads:
            return []
        wire = getattr(self._compression, "dtype", None)  # what fp16 and bf16 are sent as; other compressors act first
        wire = wire if isinstance(wire, DType) else None
        steps = optimizer.gradient_accumulation_steps if self._applying else None
        found: list[Any] = backend().reduced(
            grads, names, self._open(optimizer, wire), self._sparse_as_dense,
            NoneCompressor if wire else self._compression,
            None if not steps else lambda: (counter(optimizer) + 1) % steps == 0,
        )  # fmt: skip
        return found

    def _open(self, optimizer: Any, wire: DType | None) -> Exchange:
        """The exchange of this job; ranks agree on its name by having as many optimizers that step."""
        engine = context.engine(self.process_set)
        if self._exchange is None or self._exchange[0] is not engine:
            number = serials.next_for(engine)
            self._exchange = engine, WatchedExchange(
                f"keras.DistributedOptimizer.{number}", self._op, 1.0 / self._predivide,
                self._predivide * self.factor, self.process_set, wire,
                values=_weights(optimizer),
            )  # fmt: skip
        return self._exchange[1]


class WatchedExchange(Exchange):
    """An Exchange that looks, the first time, whether the ranks do what they would not be there for: compute the same,
    or begin with different weights."""

    def __init__(self, *args: Any, values: Values) -> None:
        super().__init__(*args)
        self._values = values
        self._looked = False

    def start(
        self, arrays: Sequence[Array], names: Sequence[str] | None = None, *, in_place: bool = False
    ) -> Callable[[], list[Array]]:
        """See ``Exchange.start``."""
        if not self._looked:
            self._looked = True
            self._look(context.engine(self.process_set), arrays)
        return super().start(arrays, names, in_place=in_place)

    def _look(self, engine: Engine, arrays: Sequence[Array]) -> None:
        mine = digest_of(arrays) if any(np.any(array) for array in arrays) else None
        weights = self._values()
        theirs = None if weights is None else digest_of(weights)
        same_gradients, same_weights = all_equal(engine, self.name, [mine, theirs])
        if engine.rank == 0:
            if same_gradients:
                notes.same_data(engine.size, "computed the same gradients")
            if same_weights is False:
                notes.different_start(engine.size)


def all_equal(engine: Engine, label: str, values: Sequence[int | None]) -> list[bool | None]:
    """For each value: is it the same on all ranks? None if some rank does not know. Ranks that joined do not count."""
    known = [value is not None for value in values]
    numbers = [value if value is not None else 0 for value in values]
    words = np.array([*numbers, *(-number for number in numbers), *known], dtype=np.int64)
    request = Request(f"{label}.equal", Kind.ALLREDUCE, DType.INT64, words.shape, ReduceOp.MIN)
    engine.run([Entry(request, Buffer(words, words, DType.INT64))])
    count = len(numbers)
    return [
        bool(words[number] == -words[count + number]) if words[2 * count + number] else None for number in range(count)
    ]


def digest_of(arrays: Sequence[Array]) -> int:
    """A number that differs when arrays differ, nearly always."""
    digest = 0
    for array in arrays:
        digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest)
    return digest


def counter(optimizer: Any) -> Any:
    """The variable that counts batches. Old Keras has it under another name."""
    found = optimizer.__dict__.get("_iterations")
    return optimizer.iterations if found is None else found


def name_of(variable: Any) -> str:
    """The last two parts of a variable's path, without the numbers that tell apart layers of one process: a rank may
    have made more of them, and a model that was loaded begins its paths elsewhere."""
    return _label(getattr(variable, "path", None) or str(variable.name).partition(":")[0])


@functools.cache
def _label(path: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", "/".join(path.split("/")[-2:]))


def _weights(optimizer: Any) -> Values:
    """The weights that ``optimizer`` trains, when they can be looked at."""
    local = {id(variable) for variable in optimizer._farandole.local()}
    variables = [variable for variable in optimizer._trainable_variables if id(variable) not in local]
    return backend().values(variables)  # type: ignore[no-any-return]
