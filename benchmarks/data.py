"""Parquet files as batches on one process: ours, shuffled, beside what reads the same files in their own order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.samples import DATALOADER, KEPT, OURS, PETASTORM, TF_DATA, Case, interleave

ROWS = 400_000
QUICK_ROWS = 20_000
FILES = 4
WIDTH = 16  # numbers in the array column
COLUMNS = [*(f"c{number}" for number in range(6)), "x", "y"]
BATCH_SIZES = (64, 1024)
REPETITIONS = 7


def cases(quick: bool) -> Iterator[Case]:
    rows = QUICK_ROWS if quick else ROWS
    folder = Path(tempfile.mkdtemp(prefix="farandole-bench-"))
    try:
        write(folder, rows)
        for size in BATCH_SIZES[:1] if quick else BATCH_SIZES:
            turns = {name: counted(read, folder, size, rows) for name, read in contenders().items()}
            samples = interleave(turns, repetitions=1 if quick else REPETITIONS)
            yield Case("data", f"{rows} rows in batches of {size}", samples)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def contenders() -> dict[str, Callable[[str, int], Iterator[Any]]]:
    """Those whose packages are installed."""
    found = {OURS: streamed, KEPT: kept, DATALOADER: dataloader}
    if find_spec("tensorflow"):
        found[TF_DATA] = tf_data
    if find_spec("petastorm"):
        found[PETASTORM] = petastorm
    return found


def counted(read: Callable[[str, int], Iterator[Any]], folder: Path, size: int, rows: int) -> Callable[[], None]:
    def run() -> None:
        seen = sum(len(batch["y"]) for batch in read(str(folder), size))
        assert seen == rows, f"{seen} rows instead of {rows}"

    return run


def write(folder: Path, rows: int) -> None:
    """Six numbers, a list of numbers and a label in each row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    table = {name: random.random(rows, np.float32) for name in COLUMNS[:6]}
    lists = pa.FixedSizeListArray.from_arrays(random.random(rows * WIDTH, np.float32), WIDTH)
    table |= {"x": lists.cast(pa.list_(pa.float32())), "y": random.integers(0, 10, rows)}
    for number in range(FILES):
        part = pa.table(table).slice(number * rows // FILES, rows // FILES)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=10_000)


def streamed(folder: str, size: int) -> Iterator[Any]:
    """Shuffled, with less memory than the files want."""
    from farandole.data import from_parquet

    return iter(from_parquet(folder).torch(size, memory=48 << 20, rank=0, size=1))


_kept: dict[tuple[str, int], Any] = {}


def kept(folder: str, size: int) -> Iterator[Any]:
    """Shuffled, with memory for all: after the first epoch files are not read any more."""
    from farandole.data import from_parquet

    if (folder, size) not in _kept:
        _kept.clear()
        _kept[folder, size] = from_parquet(folder).torch(size, memory=1 << 30, rank=0, size=1)
    return iter(_kept[folder, size])


def record_batches(folder: str, size: int) -> Iterator[dict[str, Any]]:
    """By pyarrow's own scanner, which reads ahead in threads, in the files' order."""
    import pyarrow.dataset as ds

    for batch in ds.dataset(folder).to_batches(batch_size=size):
        arrays = {name: batch.column(name) for name in COLUMNS}
        lists = arrays.pop("x").flatten().to_numpy().reshape(-1, WIDTH)
        yield {**{name: array.to_numpy() for name, array in arrays.items()}, "x": lists}


def dataloader(folder: str, size: int) -> Iterator[Any]:
    import torch

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            for batch in record_batches(folder, size):
                yield {name: torch.from_numpy(array.copy()) for name, array in batch.items()}

    return iter(torch.utils.data.DataLoader(Batches(), batch_size=None))


def tf_data(folder: str, size: int) -> Iterator[Any]:
    import tensorflow as tf

    specs = {name: tf.TensorSpec((None,), tf.float32) for name in COLUMNS[:6]}
    specs |= {"x": tf.TensorSpec((None, WIDTH), tf.float32), "y": tf.TensorSpec((None,), tf.int64)}
    found = tf.data.Dataset.from_generator(lambda: record_batches(folder, size), output_signature=specs)
    return iter(found.prefetch(tf.data.AUTOTUNE))


def petastorm(folder: str, size: int) -> Iterator[Any]:
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    with make_batch_reader(f"file://{folder}", num_epochs=1, workers_count=2) as reader:
        yield from BatchedDataLoader(reader, batch_size=size)
