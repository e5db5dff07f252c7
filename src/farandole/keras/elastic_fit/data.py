"""The data of ``fit`` from any position, for any set of ranks.

Progress within an epoch is one number, ``done``: rows or elements of the whole data if ``fit``
divides the data among the ranks (``shard=True``), and this rank's batches otherwise. Divided data
has one order for any set of ranks: the items after ``done`` are distributed to the present ranks in
turn.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from farandole.data import Permutation

_BATCH = 32  # rows, the default of ``fit`` for arrays


class ChosenBatches:
    """The batches of data with the given numbers, in this order. The base of such data for one
    version of Keras.
    """

    _whole: Any
    _numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        return self._whole[self._numbers[index]]


class Place(NamedTuple):
    """The rank's index among the ranks that share the data, and their number."""

    rank: int = 0
    size: int = 1


class Part(NamedTuple):
    """The data for one call of ``fit``.

    - ``arguments``: The arguments of ``fit`` that differ from the program's.
    - ``steps``: The batches of an epoch; None if unknown.
    - ``whole``: Whether the data is for all remaining epochs, not only for the current one.
    """

    arguments: Mapping[str, Any]
    steps: int | None
    whole: bool = False


class Source(Protocol):
    """The data of a ``fit`` over several memberships."""

    def part(self, epoch: int, done: int, batch: int, place: Place) -> Part:
        """Return the rest of ``epoch`` for this rank, after ``done`` and ``batch`` steps."""

    def after(self, done: int, batches: int, place: Place) -> int:
        """Return ``done`` after ``batches`` further steps of every rank."""

    def next_epoch(self, done: int) -> int:
        """Return ``done`` at the beginning of the next epoch."""

    def forget(self, done: int) -> None:
        """Release the data before ``done``, which no rank needs any longer."""

    def sample(self) -> Any:
        """Return a batch, for its shapes."""


class Tools(NamedTuple):
    """Functions and classes that depend on the version of Keras.

    - ``flatten``, ``map``: Keras's functions for nested containers.
    - ``take``: ``take(leaf, indices)`` returns rows of an array, tensor or table.
    - ``sequence``: The class of data that is read by the number of a batch.
    - ``length``: The batches of such data; None if it has no end.
    - ``subset``: ``subset(data, indices)`` returns the batches with these numbers as such data.
    - ``shard``: ``shard(data, rank, size)`` divides a ``tf.data.Dataset``.
    - ``loader``: ``loader(data, epoch, done, rank, size)`` divides the remaining data of a
      DataLoader.
    """

    flatten: Callable[[Any], list[Any]]
    map: Callable[..., Any]
    take: Callable[[Any, Any], Any]
    sequence: type
    length: Callable[[Any], int | None]
    subset: Callable[[Any, Any], Any]
    shard: Callable[[Any, int, int], Any]
    loader: Callable[..., Any] | None = None


def source_of(arguments: Mapping[str, Any], divided: bool, seed: int, tools: Tools) -> Source:
    """Return the data among the arguments of ``fit``.

    ``divided``: whether all ranks pass the same data, to be divided. ``seed``: the seed of the
    order; equal on all ranks if ``divided``.
    """
    x = arguments.get("x")
    divided = divided and not getattr(x, "sharded", False)
    given = _Given(arguments, divided, seed, tools)
    if isinstance(x, tools.sequence):
        return Batches(given) if tools.length(x) is not None else Stream(given)
    if hasattr(x, "element_spec"):
        return Dataset(given)
    if hasattr(x, "batch_sampler") and hasattr(x, "dataset"):
        return Loader(given)
    if isinstance(x, Iterator):
        return Stream(given)
    return Rows(given)


class _Given(NamedTuple):
    arguments: Mapping[str, Any]
    divided: bool
    seed: int
    tools: Tools

    @property
    def steps(self) -> int | None:
        """The program's ``steps_per_epoch``."""
        return self.arguments.get("steps_per_epoch")

    def order(self, epoch: int, length: int) -> Callable[[Any], Any]:
        shuffled = self.arguments.get("shuffle", True)
        return Permutation(length, self.seed, epoch) if shuffled else lambda places: places

    def place(self, place: Place) -> Place:
        return place if self.divided else Place()


class _Repeated:
    """Data that restarts in each epoch."""

    def next_epoch(self, done: int) -> int:
        return 0

    def forget(self, done: int) -> None:
        """Keep everything: the next epoch needs it."""


def _positions(left: int, done: int, count: int, place: Place) -> Any:
    """Return this rank's positions among the ``left`` ones after ``done``; the first are repeated
    if they do not divide evenly.
    """
    return done + (np.arange(count) * place.size + place.rank) % left


class Rows(_Repeated):
    """Arrays, tensors and tables, or containers of them: divided by rows."""

    def __init__(self, given: _Given) -> None:
        self._given = given
        self._names = [name for name in ("x", "y", "sample_weight") if name in given.arguments]
        leaves = given.tools.flatten([given.arguments[name] for name in self._names])
        self._length = next(int(leaf.shape[0]) for leaf in leaves if hasattr(leaf, "shape"))
        self._batch = int(given.arguments.get("batch_size") or _BATCH)

    def part(self, epoch: int, done: int, batch: int, place: Place) -> Part:
        place, left = self._given.place(place), self._length - self._rows(done)
        count = -(-left // place.size)
        if self._given.steps is not None:
            count = min(count, (self._given.steps - batch) * self._batch)
        positions = _positions(left, self._rows(done), count, place)
        rows = self._given.order(epoch, self._length)(positions)
        arguments = {name: self._taken(name, rows) for name in self._names}
        arguments.update(shuffle=False, steps_per_epoch=None)
        return Part(arguments, -(-count // self._batch))

    def after(self, done: int, batches: int, place: Place) -> int:
        if not self._given.divided:
            return done + batches
        return min(done + batches * self._batch * place.size, self._length)

    def sample(self) -> Any:
        rows = np.arange(min(self._batch, self._length))
        return tuple(self._taken(name, rows) for name in self._names)

    def _rows(self, done: int) -> int:
        """Return the number of rows before this rank's next one; at least one row remains."""
        rows = done if self._given.divided else done * self._batch
        return min(rows, self._length - 1)

    def _taken(self, name: str, rows: Any) -> Any:
        tools = self._given.tools
        data = self._given.arguments[name]
        return None if data is None else tools.map(lambda leaf: tools.take(leaf, rows), data)


class Batches(_Repeated):
    """Data that is read by the number of a batch, with an end: divided by batches."""

    def __init__(self, given: _Given) -> None:
        self._given, self._whole = given, given.arguments["x"]
        self._length = int(given.tools.length(self._whole) or 0)
        self._ended = int(given.arguments.get("initial_epoch") or 0)

    def part(self, epoch: int, done: int, batch: int, place: Place) -> Part:
        while self._ended < epoch:  # data may shuffle itself here, also on a new rank
            self._whole.on_epoch_end()
            self._ended += 1
        place, done = self._given.place(place), min(done, self._length - 1)
        left = self._length - done
        count = -(-left // place.size)
        if self._given.steps is not None:
            count = min(count, self._given.steps - batch)
        numbers = self._given.order(epoch, self._length)(_positions(left, done, count, place))
        data = self._given.tools.subset(self._whole, [int(number) for number in numbers])
        return Part({"x": data, "shuffle": False, "steps_per_epoch": None}, count)

    def after(self, done: int, batches: int, place: Place) -> int:
        return min(done + batches * self._given.place(place).size, self._length)

    def sample(self) -> Any:
        return self._whole[0]


class Dataset(_Repeated):
    """A ``tf.data.Dataset``: divided by elements.

    With ``steps_per_epoch`` an epoch begins where the last one has ended.
    """

    def __init__(self, given: _Given) -> None:
        self._given, self._data = given, given.arguments["x"]

    def part(self, epoch: int, done: int, batch: int, place: Place) -> Part:
        place, steps = self._given.place(place), self._given.steps
        data = self._data.skip(done) if done else self._data
        data = self._given.tools.shard(data, *place) if place.size > 1 else data
        if batch == 0:
            count = int(data.cardinality())
            return Part({"x": data}, steps or (count if count >= 0 else None), whole=True)
        if steps is not None:
            return Part({"x": data, "steps_per_epoch": steps - batch}, steps - batch)
        count = int(data.cardinality())
        return Part({"x": data}, count if count >= 0 else None)

    def after(self, done: int, batches: int, place: Place) -> int:
        return done + batches * self._given.place(place).size

    def next_epoch(self, done: int) -> int:
        return 0 if self._given.steps is None else done

    def sample(self) -> Any:
        return next(iter(self._data))


class Loader(_Repeated):
    """A DataLoader of PyTorch: divided by samples."""

    def __init__(self, given: _Given) -> None:
        self._given, self._data = given, given.arguments["x"]
        self._length = len(self._data) if not given.divided else len(self._data.dataset)

    def part(self, epoch: int, done: int, batch: int, place: Place) -> Part:
        deal = self._given.tools.loader
        done = min(done, self._length - 1)
        if self._given.divided and deal is not None:
            data = deal(self._data, epoch, done, *place)
            return Part({"x": data}, len(data), whole=batch == 0)
        if done == 0:
            return Part({"x": self._data}, self._length, whole=True)
        # a loader cannot begin in the middle
        steps = self._length - done
        rest = itertools.islice(iter(self._data), done, None)
        return Part({"x": (each for each in rest), "steps_per_epoch": steps}, steps)

    def after(self, done: int, batches: int, place: Place) -> int:
        size = self._data.batch_size * place.size if self._given.divided else 1
        return min(done + batches * size, self._length)

    def sample(self) -> Any:
        return next(iter(self._data))


class Stream:
    """Data without an end, from a generator or by the number of a batch: divided by elements.

    Frameworks read ahead, so elements of a generator are kept until they are done.
    """

    def __init__(self, given: _Given) -> None:
        self._given, self._data = given, given.arguments["x"]
        self._kept: collections.deque[Any] = collections.deque()
        self._first = 0  # the number of the first element kept
        self._lock = threading.Lock()  # TensorFlow reads in a separate thread

    def part(self, epoch: int, done: int, batch: int, place: Place) -> Part:
        place, steps = self._given.place(place), self._given.steps
        self.forget(done)
        data = self._elements(done + place.rank, place.size)
        if batch == 0 or steps is None:
            return Part({"x": data}, steps, whole=True)
        data = itertools.islice(data, steps - batch)
        data = (each for each in data)  # Keras requires a generator
        return Part({"x": data, "steps_per_epoch": steps - batch}, steps - batch)

    def after(self, done: int, batches: int, place: Place) -> int:
        return done + batches * self._given.place(place).size

    def next_epoch(self, done: int) -> int:
        return done

    def sample(self) -> Any:
        return self._element(self._first)

    def _elements(self, number: int, step: int) -> Iterator[Any]:
        while True:
            try:
                element = self._element(number)
            except StopIteration:
                return
            yield element
            number += step

    def _element(self, number: int) -> Any:
        if not isinstance(self._data, Iterator):
            return self._data[number]
        with self._lock:
            while number >= self._first + len(self._kept):
                self._kept.append(next(self._data))
            return self._kept[number - self._first]

    def forget(self, done: int) -> None:
        """Drop elements before ``done``; a new rank reads them first."""
        if not isinstance(self._data, Iterator):
            return
        with self._lock:
            while self._first < done:
                if self._kept:
                    self._kept.popleft()
                elif next(self._data, self) is self:
                    return
                self._first += 1
