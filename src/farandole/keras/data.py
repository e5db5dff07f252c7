"""Distribution of data to ranks."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from farandole.checks.reporting import warn_once
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.data import DistributedSampler, ElasticSampler
from farandole.errors import counted
from farandole.job.context import ProcessSet
from farandole.keras.checks import uneven_shuffle
from farandole.strategies.shares import Shares

_SAMPLE = 256  # rows compared to distinguish data sets


@documented(
    "init",
    "ValueError: data that cannot be divided.",
    data=(
        "arrays, containers of them, a tf.data.Dataset, PyDataset, DataLoader or generator; None"
        " remains None."
    ),
    even=(
        "True: all ranks get the same number of rows, by repeating rows from the beginning if"
        " needed. False: no row is repeated."
    ),
    example="model.fit(*hvd.shard(x, y), epochs=3)",
)
def shard(*data: Any, process_set: ProcessSet = WORLD, even: bool = True) -> Any:
    """Return this rank's part of ``data``: ``model.fit(*shard(x, y))``.

    Arrays, and lists and dicts of arrays: rows rank, rank + size, ..., so that one step of all
    ranks sees the rows of one process's batch with their batches joined. tf.data datasets and
    PyDatasets: elements (batches) in the same way; anything that shuffles them needs the same seed
    on all ranks, otherwise some rows are read twice and others never. Torch DataLoaders: samples,
    shuffled in the same order on all ranks. Generators: every size-th element. One argument returns
    its part, several return a tuple.
    """
    rank, size = process_set.rank(), process_set.size()
    parts = tuple(_part(part, rank, size, even) for part in data)
    return parts[0] if len(parts) == 1 else parts


def _part(data: Any, rank: int, size: int, even: bool) -> Any:
    # loaders of farandole.data are already sharded
    if data is None or size == 1 or getattr(data, "sharded", False):
        return data
    if isinstance(data, (list, tuple, dict)):
        return keras.tree.map_structure(lambda leaf: _part(leaf, rank, size, even), data)
    if isinstance(data, keras.utils.PyDataset):
        return _PartOfPyDataset(data, rank, size, even)
    if hasattr(data, "shard") and hasattr(data, "element_spec"):
        return shard_dataset(data, rank, size, even)
    if hasattr(data, "dataset") and hasattr(data, "batch_sampler"):
        return _part_of_loader(data, rank, size, even)
    if hasattr(data, "shape") and len(data.shape) > 0:
        return _rows(data, rank, size, even)
    if isinstance(data, Iterator):
        return _every(data, rank, size)
    raise ValueError(
        f"a {type(data).__name__} cannot be divided among ranks. Pass arrays, a tf.data.Dataset, a"
        " PyDataset, a torch DataLoader or a generator, or give each rank its own part"
    )


def _every(data: Iterator[Any], rank: int, size: int) -> Iterator[Any]:
    yield from itertools.islice(data, rank, None, size)  # Keras requires a generator


def _rows(data: Any, rank: int, size: int, even: bool) -> Any:
    total = int(data.shape[0])
    if total == 0 or (not even and rank >= total):
        raise ValueError(f"{counted(total, 'row')} cannot be divided among {size} ranks")
    rows = np.arange(rank, -(-total // size) * size if even else total, size)
    if rows[-1] < total:
        return data[rank::size]
    rows %= total
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    return data[rows] if isinstance(data, np.ndarray) else keras.ops.take(data, rows, axis=0)


def shard_dataset(data: Any, rank: int, size: int, even: bool = True) -> Any:
    """Return this rank's elements of a tf.data.Dataset; see ``shard``."""
    if rank == 0 and _UNSEEDED in seeds_of(data):
        warn_once(uneven_shuffle())
    count = int(data.cardinality())
    if even and count > 0 and count % size:
        data = data.concatenate(data.take(size - count % size))
    return data.shard(size, rank)


_UNSEEDED = (0, 0)  # TensorFlow's value for "no seed"


def seeds_of(data: Any) -> list[tuple[int, int]]:
    """Return the seeds of all shuffling operations in a tf.data.Dataset; an empty list for other
    data.
    """
    pair: list[Any] = [getattr(data, name, None) for name in ("_seed", "_seed2")]
    shuffles = "Shuffle" in type(data).__name__ and all(hasattr(seed, "numpy") for seed in pair)
    own = [(int(pair[0]), int(pair[1]))] if shuffles else []
    inputs = data._inputs() if hasattr(data, "element_spec") and hasattr(data, "_inputs") else ()
    return own + [seeds for each in inputs for seeds in seeds_of(each)]


class _PartOfPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    def __init__(self, whole: Any, rank: int, size: int, even: bool) -> None:
        super().__init__(
            workers=whole.workers,
            use_multiprocessing=whole.use_multiprocessing,
            max_queue_size=whole.max_queue_size,
        )
        self._whole, self._place, self._even = whole, (rank, size), even

    @property
    def num_batches(self) -> int | None:
        count = self._whole.num_batches
        rank, size = self._place
        return (
            None
            if count is None
            else -(-count // size)
            if self._even
            else len(range(rank, count, size))
        )

    def __len__(self) -> int:
        return self.num_batches or 0

    def __getitem__(self, index: int) -> Any:
        rank, size = self._place
        number, count = index * size + rank, self._whole.num_batches
        return self._whole[number if count is None else number % count]

    def on_epoch_end(self) -> None:
        self._whole.on_epoch_end()


def remaining_of_loader(loader: Any, epoch: int, done: int, place: Shares, full: bool) -> Any:
    """Return a DataLoader with this rank's samples of ``epoch`` after the first ``done``, and then
    of the following epochs.

    ``place``: the rank's shares of each step. ``full``: whether the job has a fixed global batch,
    whose batches are full. Raises ValueError for a loader whose order is unknown.
    """
    sampler: Any
    if full:
        sampler = _FullEpochs(
            loader.dataset, shuffle=_is_shuffled(loader), batch_size=loader.batch_size
        )
    else:
        sampler = _epochs(loader, place.begin, place.total)
    sampler.load_state_dict({"epoch": epoch, "processed_num": done})
    return _with_sampler(loader, sampler, loader.batch_size * place.held)


def _part_of_loader(loader: Any, rank: int, size: int, even: bool) -> Any:
    if even:
        return _with_sampler(loader, _epochs(loader, rank, size), loader.batch_size)
    _is_shuffled(loader)
    return _with_sampler(loader, range(rank, len(loader.dataset), size), loader.batch_size)


def _epochs(loader: Any, rank: int, size: int) -> _Epochs:
    return _Epochs(loader.dataset, size, rank, shuffle=_is_shuffled(loader))


def _is_shuffled(loader: Any) -> bool:
    """Return whether the loader shuffles. Raises ValueError for a loader with another order."""
    kind = type(loader.sampler).__name__
    shuffle = kind == "RandomSampler"
    drawn = shuffle and (
        loader.sampler.replacement or loader.sampler.num_samples != len(loader.dataset)
    )
    if kind not in ("RandomSampler", "SequentialSampler") or loader.batch_size is None or drawn:
        how = " with replacement or num_samples" if drawn else ""
        raise ValueError(
            f"a DataLoader with its own {kind}{how} cannot be divided among ranks. Use"
            " farandole.data.DistributedSampler as its sampler, without shard"
        )
    return shuffle


def _with_sampler(loader: Any, sampler: Any, batch_size: int) -> Any:
    return type(loader)(
        loader.dataset,
        batch_size=batch_size,
        sampler=sampler,
        **{name: getattr(loader, name) for name in _OF_LOADER if hasattr(loader, name)},
    )


# Attributes that a loader keeps when its samples are distributed.
_OF_LOADER = (
    "collate_fn",
    "drop_last",
    "generator",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


class _Epochs(DistributedSampler):
    """A sampler that counts each iteration as a new epoch, because ``fit`` does not report epochs
    to samplers.
    """

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)


class _FullEpochs(ElasticSampler):
    """A sampler of a fixed global batch that counts each iteration as a new epoch."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)


def digest_of_data(data: Any) -> int | None:
    """Return a number that differs when arrays differ; None for data that cannot be read without
    consuming it.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    if not leaves or not all(hasattr(leaf, "shape") and len(leaf.shape) > 0 for leaf in leaves):
        return None
    digest = 0
    for leaf in leaves:
        total = int(leaf.shape[0])
        rows = leaf[:: max(1, total // _SAMPLE)]
        array = keras.ops.convert_to_numpy(rows) if keras.ops.is_tensor(rows) else np.asarray(rows)
        if array.dtype.hasobject:
            return None
        text = f"{tuple(leaf.shape)} {array.dtype}".encode()
        digest = zlib.crc32(
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, zlib.crc32(text, digest)
        )
    return digest


def sharded_arguments(arguments: dict[str, Any], process_set: ProcessSet) -> None:
    """Replace the data among the arguments of ``model.fit`` with this rank's part."""
    split_validation(arguments)
    for name in ("x", "y", "sample_weight"):
        if arguments.get(name) is not None:
            arguments[name] = shard(arguments[name], process_set=process_set)
    sharded_validation(arguments, process_set)


def sharded_validation(arguments: dict[str, Any], process_set: ProcessSet) -> None:
    """Replace the validation data among the arguments of ``model.fit`` with this rank's part."""
    validation = arguments.get("validation_data")
    if isinstance(validation, (list, tuple)):
        arguments["validation_data"] = tuple(
            None if part is None else shard(part, process_set=process_set, even=False)
            for part in validation
        )
    elif validation is not None:
        part = shard(validation, process_set=process_set, even=False)
        # Keras does not accept an empty PyDataset
        none = isinstance(part, keras.utils.PyDataset) and part.num_batches == 0
        # this rank receives its metrics from the other ranks
        arguments["validation_data"] = None if none else part


def split_validation(arguments: dict[str, Any]) -> None:
    """Take ``validation_split`` from the end of the whole data set.

    The last rows of each rank's part would be other rows, with padding rows among them.
    """
    share = arguments.get("validation_split")
    data = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    if not share or arguments.get("validation_data") is not None:
        return
    if not all(hasattr(leaf, "shape") and len(leaf.shape) > 0 for leaf in leaves):
        return  # Keras reports that they cannot be split
    place = math.floor(int(leaves[0].shape[0]) * (1.0 - share))
    if 0 < place < int(leaves[0].shape[0]):
        training = [_piece(part, slice(place)) for part in data]
        validation = tuple(_piece(part, slice(place, None)) for part in data)
        arguments.update(zip(("x", "y", "sample_weight"), training, strict=True))
        arguments.update(validation_data=validation, validation_split=0.0)


def _piece(data: Any, rows: slice) -> Any:
    if isinstance(data, (list, tuple, dict)):
        return keras.tree.map_structure(lambda leaf: _piece(leaf, rows), data)
    if data is None:
        return None
    return data.iloc[rows] if hasattr(data, "iloc") else data[rows]


__all__ = [
    "digest_of_data",
    "remaining_of_loader",
    "seeds_of",
    "shard",
    "shard_dataset",
    "sharded_arguments",
    "sharded_validation",
    "split_validation",
]
