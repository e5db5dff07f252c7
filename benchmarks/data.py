"""Reading Parquet files as batches in one process: Farandole's shuffled reader, compared with
libraries that read the same files in file order.

Conditions are as in training: readers run after init(), which makes the allocator keep freed
memory, and each reader or dataset is opened once and read for several epochs.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.samples import (
    DATALOADER,
    IN_ORDER,
    KEPT,
    OURS,
    PETASTORM,
    ROW_BY_ROW,
    SHUFFLED,
    STEPS,
    TF_DATA,
    Case,
    interleave,
)
from farandole.job import context

ROWS = 400_000
QUICK_ROWS = 20_000
FILES = 4
WIDTH = 16  # numbers in the array column
COLUMNS = [*(f"c{number}" for number in range(6)), "x", "y"]
BATCH_SIZES = (50, 1000)  # divisors of a row group, so that all contenders have the same batches
REPETITIONS = 7
STEP = 0.005  # seconds
STEP_BATCH = 2000
GROUP = 10_000  # rows of a row group
# bytes of Farandole's memory: less than the files need, so that rows are not kept
MEMORY = 48 << 20
# row groups that the shuffling DataLoader mixes: Farandole's number of lanes with that memory
WINDOW = 8
# rows: the memory that Farandole uses for shuffling; Horovod's default is all rows
PETASTORM_QUEUE = 100_000
SLOW = (ROW_BY_ROW, PETASTORM)  # for one batch size, without steps

Read = Callable[[str, int], Iterator[Any]]


def cases(quick: bool) -> Iterator[Case]:
    rows = QUICK_ROWS if quick else ROWS
    repetitions = 1 if quick else REPETITIONS
    folder = Path(tempfile.mkdtemp(prefix="farandole-bench-"))
    context.init()
    try:
        write(folder, rows)
        for size in BATCH_SIZES[1:] if quick else BATCH_SIZES:
            chosen = {
                name: read
                for name, read in contenders().items()
                if size == BATCH_SIZES[-1] or name not in SLOW
            }
            turns = {name: counted(read, folder, size, rows) for name, read in chosen.items()}
            yield Case(
                "data",
                f"{rows} rows in batches of {size}",
                interleave(turns, repetitions=repetitions),
            )
        chosen = {name: read for name, read in contenders().items() if name not in SLOW}
        turns = {
            name: counted(read, folder, STEP_BATCH, rows, step) for name, read in chosen.items()
        }
        steps = -(-rows // STEP_BATCH)
        turns[STEPS] = lambda: [step() for _ in range(steps)]
        name = f"{steps} steps of {STEP * 1e3:.0f} ms, with batches of {STEP_BATCH}"
        yield Case("data", name, interleave(turns, repetitions=repetitions))
    finally:
        context.shutdown()
        opened.cache_clear()
        scanned.cache_clear()
        shutil.rmtree(folder, ignore_errors=True)


def contenders() -> dict[str, Read]:
    """Return the contenders whose packages are installed."""
    found: dict[str, Read] = {
        OURS: streamed,
        SHUFFLED: shuffling_dataloader,
        IN_ORDER: in_order,
        DATALOADER: dataloader,
        KEPT: kept,
        ROW_BY_ROW: row_by_row,
    }
    if find_spec("tensorflow"):
        found[TF_DATA] = tf_data
    if find_spec("petastorm"):
        found[PETASTORM] = petastorm
    return found


def counted(
    read: Read, folder: Path, size: int, rows: int, step: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Read an epoch, and check its number of rows. ``step``: called with each batch."""

    def run() -> None:
        seen = 0
        for batch in read(str(folder), size):
            seen += len(batch["y"])
            step()
        assert seen == rows, f"{seen} rows instead of {rows}"

    return run


_square = np.ones((96, 96), np.float32)


def step() -> None:
    """Compute on one core, without the GIL, as a framework does."""
    end = time.perf_counter() + STEP
    while time.perf_counter() < end:
        np.matmul(_square, _square)


def write(folder: Path, rows: int) -> None:
    """Write files whose rows have six numbers, a list of numbers and a label."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    table = {name: random.random(rows, np.float32) for name in COLUMNS[:6]}
    offsets = np.arange(0, rows * WIDTH + 1, WIDTH, dtype=np.int32)
    lists = pa.ListArray.from_arrays(offsets, random.random(rows * WIDTH, np.float32))
    table |= {"x": lists, "y": random.integers(0, 10, rows)}
    for number in range(FILES):
        part = pa.table(table).slice(number * rows // FILES, rows // FILES)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=GROUP)


@functools.cache
def opened(folder: str, size: int, memory: int, shuffle: bool) -> Any:
    from farandole.data import from_parquet

    return from_parquet(folder).torch(size, memory=memory, shuffle=shuffle, rank=0, size=1)


def streamed(folder: str, size: int) -> Iterator[Any]:
    """Shuffled."""
    return iter(opened(folder, size, MEMORY, True))


def in_order(folder: str, size: int) -> Iterator[Any]:
    return iter(opened(folder, size, MEMORY, False))


def kept(folder: str, size: int) -> Iterator[Any]:
    """Yield shuffled batches with memory for all rows: files are read in the first epoch only."""
    return iter(opened(folder, size, 1 << 30, True))


@functools.cache
def scanned(folder: str) -> Any:
    import pyarrow.dataset as ds

    return ds.dataset(folder)


def record_batches(folder: str, size: int) -> Iterator[dict[str, Any]]:
    """Yield batches of pyarrow's scanner, which prefetches in threads, in file order.

    Each row group is converted to arrays, which are then sliced: requesting batches of this size
    from the scanner is much slower.
    """
    for found in scanned(folder).to_batches():
        own = {name: array.copy() for name, array in arrays_of(found).items()}
        for begin in range(0, found.num_rows, size):
            yield {name: array[begin : begin + size] for name, array in own.items()}


def arrays_of(found: Any) -> dict[str, Any]:
    """Return the columns of an Arrow batch as arrays that share its memory."""
    columns = {name: found.column(name) for name in COLUMNS}
    lists = columns.pop("x").flatten().to_numpy().reshape(-1, WIDTH)
    return {"x": lists, **{name: column.to_numpy() for name, column in columns.items()}}


def shuffled_batches(folder: str, size: int) -> Iterator[dict[str, Any]]:
    """Yield the batches of ``record_batches``, with the row groups in random order and the rows of
    each ``WINDOW`` of them mixed.
    """
    import pyarrow.dataset as ds

    found = scanned(folder)
    groups = [group for file in found.get_fragments() for group in file.split_by_row_group()]
    random = np.random.default_rng()
    random.shuffle(groups)
    batches = ds.FileSystemDataset(
        groups, found.schema, found.format, groups[0].filesystem
    ).to_batches()
    while window := [arrays_of(batch) for batch in itertools.islice(batches, WINDOW)]:
        rows = random.permutation(sum(len(part["y"]) for part in window))
        own = {
            name: np.concatenate([part[name] for part in window]).take(rows, axis=0)
            for name in COLUMNS
        }
        for begin in range(0, len(rows), size):
            yield {name: array[begin : begin + size] for name, array in own.items()}


def dataloader(folder: str, size: int) -> Iterator[Any]:
    return loaded(record_batches(folder, size))


def shuffling_dataloader(folder: str, size: int) -> Iterator[Any]:
    return loaded(shuffled_batches(folder, size))


def loaded(batches: Iterator[dict[str, Any]]) -> Iterator[Any]:
    """Yield batches through torch's DataLoader."""
    import torch

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            for batch in batches:
                yield {name: torch.from_numpy(array) for name, array in batch.items()}

    return iter(torch.utils.data.DataLoader(Batches(), batch_size=None))


def row_by_row(folder: str, size: int) -> Iterator[Any]:
    """Yield batches collated by the DataLoader from a dict per row. Petastorm's make_reader reads
    in this way (with a pool of workers, too), as Horovod's estimators did with a transformation_fn.
    """
    import torch

    class Rows(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            for batch in scanned(folder).to_batches():
                for row in batch.to_pylist():
                    yield {**row, "x": np.array(row["x"], np.float32)}

    return iter(torch.utils.data.DataLoader(Rows(), batch_size=size))


def tf_data(folder: str, size: int) -> Iterator[Any]:
    import tensorflow as tf

    specs = {name: tf.TensorSpec((None,), tf.float32) for name in COLUMNS[:6]}
    specs |= {"x": tf.TensorSpec((None, WIDTH), tf.float32), "y": tf.TensorSpec((None,), tf.int64)}
    found = tf.data.Dataset.from_generator(
        lambda: record_batches(folder, size), output_signature=specs
    )
    return iter(found.prefetch(tf.data.AUTOTUNE))


def petastorm(folder: str, size: int) -> Iterator[Any]:
    """Yield shuffled batches as Horovod's estimators do, in threads instead of processes, which are
    slower. Petastorm 0.12.1 with pyarrow 12 is the last compatible pair.
    """
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    with make_batch_reader(f"file://{folder}", num_epochs=1, workers_count=2) as reader:
        yield from BatchedDataLoader(
            reader, batch_size=size, shuffling_queue_capacity=PETASTORM_QUEUE
        )
