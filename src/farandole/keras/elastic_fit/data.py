"""The data of ``fit`` from any position, for any set of ranks.

Progress within an epoch is one number, ``done``: rows or elements of the whole data if ``fit``
divides the data among the ranks (``shard=True``), and this rank's batches otherwise. Divided data
has one order for any set of ranks: the items after ``done`` are distributed round-robin to the
shares of a global batch. Usually each current rank has one share. A fixed global batch has the same
number of shares for any number of ranks, all batches are full, and the batch of a rank consists of
all of its shares.
"""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from farandole.data import Permutation
from farandole.errors import SettingsError
from farandole.keras.elastic_fit.joining import rows_of
from farandole.strategies.shares import Shares

_BATCH = 32  # rows, the default of ``fit`` for arrays


class ChosenBatches:
    """The batches of data with the given numbers, in this order. The base class of such data for
    one version of Keras.

    With ``join``, ``held`` successive batches are joined into one.
    """

    _whole: Any
    _numbers: Sequence[int]
    _held = 1
    _join: Callable[[Sequence[Any]], Any] | None = None

    def joined(self, held: int, join: Callable[[Sequence[Any]], Any]) -> ChosenBatches:
        """Join ``held`` successive batches into one from now on."""
        self._held, self._join = held, join
        return self

    def __len__(self) -> int:
        return len(self._numbers) // self._held

    def __getitem__(self, index: int) -> Any:
        if self._join is None:
            return self._whole[self._numbers[index]]
        numbers = self._numbers[index * self._held : (index + 1) * self._held]
        return self._join([self._whole[number] for number in numbers])


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

    def part(self, epoch: int, done: int, batch: int, place: Shares) -> Part:
        """Return the rest of ``epoch`` for this rank, after ``done`` and ``batch`` steps.

        ``place``: the rank's shares of each step.
        """

    def after(self, done: int, batches: int, place: Shares) -> int:
        """Return ``done`` after ``batches`` further steps of every rank."""

    def next_epoch(self, done: int) -> int:
        """Return ``done`` at the beginning of the next epoch."""

    def forget(self, done: int) -> None:
        """Release the data before ``done``, which no rank needs anymore."""

    def sample(self) -> Any:
        """Return a batch, for its shapes."""


class Tools(NamedTuple):
    """Functions and classes that depend on the version of Keras.

    - ``flatten``, ``map``: Keras's functions for nested containers.
    - ``take``: ``take(leaf, indices)`` returns rows of an array, tensor or table.
    - ``sequence``: The class of data that is indexed by batch.
    - ``length``: The number of batches of such data; None if it is infinite.
    - ``subset``: ``subset(data, indices)`` returns the batches with these numbers as such data.
    - ``shard``: ``shard(data, rank, size)`` divides a ``tf.data.Dataset``.
    - ``loader``: ``loader(data, epoch, done, place, full)`` divides the rest of a DataLoader;
      ``full``: into full global batches.
    - ``join``: ``join(batches, rows)`` returns batches as one, each with this many rows.
    """

    flatten: Callable[[Any], list[Any]]
    map: Callable[..., Any]
    take: Callable[[Any, Any], Any]
    sequence: type
    length: Callable[[Any], int | None]
    subset: Callable[[Any, Any], Any]
    shard: Callable[[Any, int, int], Any]
    loader: Callable[..., Any] | None = None
    join: Callable[..., Any] | None = None


def source_of(
    arguments: Mapping[str, Any], divided: bool, seed: int, tools: Tools, *, full: bool = False
) -> Source:
    """Return the data among the arguments of ``fit``.

    ``divided``: whether all ranks pass the same data, to be divided. ``seed``: the seed of the
    order; equal on all ranks if ``divided``. ``full``: whether the global batch is fixed, and all
    batches are full.
    """
    x = arguments.get("x")
    divided = divided and not getattr(x, "sharded", False)
    given = _Given(arguments, divided, seed, tools, full)
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
    full: bool

    @property
    def steps(self) -> int | None:
        """The program's ``steps_per_epoch``."""
        return self.arguments.get("steps_per_epoch")

    def order(self, epoch: int, length: int) -> Callable[[Any], Any]:
        shuffled = self.arguments.get("shuffle", True)
        return Permutation(length, self.seed, epoch) if shuffled else lambda places: places

    def place(self, place: Shares) -> Shares:
        return place if self.divided else Shares(1, 0, 1)

    def joining(self, rows: int) -> Callable[[Sequence[Any]], Any]:
        assert self.tools.join is not None
        return functools.partial(self.tools.join, rows=rows)


class _Repeated:
    """Data that restarts in each epoch."""

    def next_epoch(self, done: int) -> int:
        return 0

    def forget(self, done: int) -> None:
        """Keep all data for the next epoch."""


def _positions(done: int, count: int, length: int, place: Shares) -> Any:
    """Return ``count`` positions after ``done`` for each of this rank's shares, in the order of the
    global batches. The first of all ``length`` positions are repeated if they do not divide evenly.
    """
    dealt = np.arange(count)[:, None] * place.total + np.arange(place.begin, place.end)
    return (done + dealt.reshape(-1)) % length


class Rows(_Repeated):
    """Arrays, tensors and tables, or containers of them: divided by rows."""

    def __init__(self, given: _Given) -> None:
        self._given = given
        self._names = [name for name in ("x", "y", "sample_weight") if name in given.arguments]
        leaves = given.tools.flatten([given.arguments[name] for name in self._names])
        self._length = next(int(leaf.shape[0]) for leaf in leaves if hasattr(leaf, "shape"))
        self._batch = int(given.arguments.get("batch_size") or _BATCH)

    def part(self, epoch: int, done: int, batch: int, place: Shares) -> Part:
        place, first = self._given.place(place), self._rows(done)
        count = -(-(self._length - first) // place.total)  # rows of a share
        if self._given.full:
            count = -(-count // self._batch) * self._batch
        if self._given.steps is not None:
            count = min(count, (self._given.steps - batch) * self._batch)
        positions = _positions(first, count, self._length, place)
        rows = self._given.order(epoch, self._length)(positions)
        arguments = {name: self._taken(name, rows) for name in self._names}
        arguments.update(shuffle=False, steps_per_epoch=None)
        if place.held > 1:
            arguments["batch_size"] = self._batch * place.held
        return Part(arguments, -(-count // self._batch))

    def after(self, done: int, batches: int, place: Shares) -> int:
        if not self._given.divided:
            return done + batches
        return min(done + batches * self._batch * place.total, self._length)

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
    """Finite data that is indexed by batch: divided by batches."""

    def __init__(self, given: _Given) -> None:
        self._given, self._whole = given, given.arguments["x"]
        self._length = int(given.tools.length(self._whole) or 0)
        self._ended = int(given.arguments.get("initial_epoch") or 0)
        self._rows = rows_of(self._whole[0], given.tools.flatten) if given.full else 0

    def part(self, epoch: int, done: int, batch: int, place: Shares) -> Part:
        while self._ended < epoch:  # data may shuffle itself here, also on a new rank
            self._whole.on_epoch_end()
            self._ended += 1
        place, done = self._given.place(place), min(done, self._length - 1)
        count = -(-(self._length - done) // place.total)
        if self._given.steps is not None:
            count = min(count, self._given.steps - batch)
        positions = _positions(done, count, self._length, place)
        numbers = self._given.order(epoch, self._length)(positions)
        data = self._given.tools.subset(self._whole, [int(number) for number in numbers])
        if self._given.full:
            data.joined(place.held, self._given.joining(self._rows))
        return Part({"x": data, "shuffle": False, "steps_per_epoch": None}, count)

    def after(self, done: int, batches: int, place: Shares) -> int:
        return min(done + batches * self._given.place(place).total, self._length)

    def sample(self) -> Any:
        return self._whole[0]


class Dataset(_Repeated):
    """A ``tf.data.Dataset``: divided by elements.

    With ``steps_per_epoch`` an epoch begins where the previous one ended.
    """

    def __init__(self, given: _Given) -> None:
        self._given, self._data = given, given.arguments["x"]

    def part(self, epoch: int, done: int, batch: int, place: Shares) -> Part:
        place, steps = self._given.place(place), self._given.steps
        if self._given.full:
            return self._full_part(done, batch, place)
        data = self._data.skip(done) if done else self._data
        data = self._given.tools.shard(data, place.begin, place.total) if place.total > 1 else data
        if batch == 0:
            count = int(data.cardinality())
            return Part({"x": data}, steps or (count if count >= 0 else None), whole=True)
        if steps is not None:
            return Part({"x": data, "steps_per_epoch": steps - batch}, steps - batch)
        count = int(data.cardinality())
        return Part({"x": data}, count if count >= 0 else None)

    def after(self, done: int, batches: int, place: Shares) -> int:
        return done + batches * self._given.place(place).total

    def next_epoch(self, done: int) -> int:
        return 0 if self._given.steps is None else done

    def _full_part(self, done: int, batch: int, place: Shares) -> Part:
        """Return the rest of the data in global batches of equal size. They are formed before
        skipping, because batches of the data may be smaller than the first.
        """
        steps, data = self._given.steps, self._data
        count, begin, end = steps, place.begin * self._rows, place.end * self._rows
        if count is None:
            count, data = -(-self._cardinality() // place.total), data.repeat()
        data = data.rebatch(place.total * self._rows, drop_remainder=True)
        data = data.skip(done // place.total).map(self._slice_of(begin, end))
        if steps is None:
            # of the package that the data comes from
            experimental: Any = sys.modules["tensorflow"].data.experimental
            data = data.take(count - batch)
            data = data.apply(experimental.assert_cardinality(count - batch))
            return Part({"x": data}, count - batch, whole=batch == 0)
        if batch == 0:
            return Part({"x": data}, steps, whole=True)
        return Part({"x": data, "steps_per_epoch": steps - batch}, steps - batch)

    def _slice_of(self, begin: int, end: int) -> Callable[..., Any]:
        def sliced(*element: Any) -> Any:
            found = self._given.tools.map(lambda leaf: leaf[begin:end], element)
            return found[0] if len(found) == 1 else found

        return sliced

    def _cardinality(self) -> int:
        count = int(self._data.cardinality())
        if count < 0:
            raise SettingsError(
                "the number of elements of the tf.data.Dataset is unknown, and with"
                " --fixed-global-batch all ranks need it: give steps_per_epoch, or use"
                " dataset.apply(tf.data.experimental.assert_cardinality(count))"
            )
        return count

    @functools.cached_property
    def _rows(self) -> int:
        """The number of rows of a share, which equals the first batch's."""
        shapes = [spec.shape for spec in self._given.tools.flatten(self._data.element_spec)]
        known = [shape[0] for shape in shapes if shape.rank]
        if known and known[0]:
            return int(known[0])
        return rows_of(self.sample(), self._given.tools.flatten)

    def sample(self) -> Any:
        return next(iter(self._data))


class Loader(_Repeated):
    """A DataLoader of PyTorch: divided by samples."""

    def __init__(self, given: _Given) -> None:
        self._given, self._data = given, given.arguments["x"]
        self._length = len(self._data) if not given.divided else len(self._data.dataset)

    def part(self, epoch: int, done: int, batch: int, place: Shares) -> Part:
        deal = self._given.tools.loader
        done = min(done, self._length - 1)
        if self._given.divided and deal is not None:
            data = deal(self._data, epoch, done, place, self._given.full)
            return Part({"x": data}, len(data), whole=batch == 0)
        if done == 0:
            return Part({"x": self._data}, self._length, whole=True)
        # a loader cannot begin in the middle
        steps = self._length - done
        rest = itertools.islice(iter(self._data), done, None)
        return Part({"x": (each for each in rest), "steps_per_epoch": steps}, steps)

    def after(self, done: int, batches: int, place: Shares) -> int:
        size = self._data.batch_size * place.total if self._given.divided else 1
        return min(done + batches * size, self._length)

    def sample(self) -> Any:
        return next(iter(self._data))


class Stream:
    """Infinite data, from a generator or indexed by batch: divided by elements.

    Frameworks prefetch, so elements of a generator are kept until their steps are done.
    """

    def __init__(self, given: _Given) -> None:
        self._given, self._data = given, given.arguments["x"]
        self._kept: collections.deque[Any] = collections.deque()
        self._first = 0  # the number of the first element kept
        self._rows = 0  # of a share
        self._lock = threading.Lock()  # TensorFlow reads in a separate thread

    def part(self, epoch: int, done: int, batch: int, place: Shares) -> Part:
        place, steps = self._given.place(place), self._given.steps
        if self._given.full:
            self._rows = self._rows or rows_of(self.sample(), self._given.tools.flatten)
        self.forget(done)
        if self._given.full:
            data = self._joined(done, place)
        else:
            data = self._elements(done + place.begin, place.total)
        if batch == 0 or steps is None:
            return Part({"x": data}, steps, whole=True)
        data = itertools.islice(data, steps - batch)
        data = (each for each in data)  # Keras requires a generator
        return Part({"x": data, "steps_per_epoch": steps - batch}, steps - batch)

    def after(self, done: int, batches: int, place: Shares) -> int:
        return done + batches * self._given.place(place).total

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

    def _joined(self, number: int, place: Shares) -> Iterator[Any]:
        """Yield this rank's elements of each global batch as one. The last global batch is filled
        with its own elements.
        """
        join = self._given.joining(self._rows)
        while (count := self._count(number, place.total)) > 0:
            yield join(
                [self._element(number + share % count) for share in range(place.begin, place.end)]
            )
            number += place.total

    def _count(self, number: int, total: int) -> int:
        """Return the number of available elements from ``number`` on, at most ``total``."""
        if not isinstance(self._data, Iterator):
            return total
        try:
            self._element(number + total - 1)
        except StopIteration:
            return self._first + len(self._kept) - number
        return total

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
