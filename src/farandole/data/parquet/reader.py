"""A rank's batches in an epoch. The ranks together read each row once, in the same order for any
number of ranks.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.host import cores
from farandole.base.log import logger
from farandole.data.loader import Prefetch
from farandole.data.order import SHUFFLE, Order, ahead_for, lanes_for
from farandole.data.parquet.chunks import Arrays, Chunks, PieceMemory
from farandole.data.parquet.columns import Column
from farandole.data.parquet.decoding import decoded, fitting
from farandole.data.parquet.files import ParquetFiles
from farandole.data.parquet.location import RowLocation
from farandole.data.parquet.scan import RowGroup
from farandole.data.parquet.source import ParquetSource
from farandole.data.shares import refuse_shares
from farandole.data.steps import EVEN, BatchRows, Steps
from farandole.data.validate import as_bool, as_int
from farandole.errors import DataError, SettingsError
from farandole.job import context
from farandole.job.config import Placement

if TYPE_CHECKING:
    from farandole.base.types import Array

MEMORY = 128 << 20
_CHUNK_BYTES, _CHUNK_ROWS = 2 << 20, 1 << 15  # most rows assembled at a time
_CHUNKS_AHEAD = 2
_THREADS = 2
# bytes, and part of the memory: smaller row groups are read as one block
_TOGETHER, _TOGETHER_PART = 1 << 20, 64


class _Epoch(NamedTuple):
    """An iteration: its epoch, its first row, and the ranks that share the rows."""

    number: int
    begin: int
    rank: int
    size: int
    steps: Steps


class Reader:
    """Batches of this rank, epoch by epoch: each completed ``for`` loop is one epoch, and the next
    has a new order.

    ``batch_size``: rows per batch of this rank. ``shuffle``, ``seed``: the order is a function of
    the files, the columns, the seed and the epoch. ``even``: handling of rows that do not divide
    evenly into ranks and batches; see docs/data.md. ``rank`` and ``size``: by default the job's.
    ``threads``: the number of prefetching threads, in addition to the consuming thread, which reads
    when it would otherwise wait; by default 2, or 1 for local files if this rank has at most 2
    cores. With 0, rows are read on demand. ``memory``: approximate bytes for rows in this process;
    more memory shuffles better. ``least``: with even="exact", fewer rows per rank than this at the
    end of an epoch are added to the previous batch.
    """

    def __init__(
        self,
        data: ParquetSource,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        even: str = "exact",
        rank: int | None = None,
        size: int | None = None,
        threads: int | None = None,
        memory: int = MEMORY,
        least: int = 1,
    ) -> None:
        if even not in EVEN:
            raise SettingsError(f"even={even!r} cannot divide rows. Use one of {', '.join(EVEN)}")
        batch_size = as_int("batch_size", batch_size, 1)
        threads = None if threads is None else as_int("threads", threads, 0)
        seed, least = as_int("seed", seed), as_int("least", least, 1)
        memory = as_int("memory", memory, 0, floats=True)
        if (rank is None) != (size is None) or (rank is not None and not 0 <= rank < (size or 0)):
            raise SettingsError(
                f"rank={rank} and size={size} must be given together, with rank from 0 to size - 1"
            )
        scan = data.scan
        if not scan.rows:
            raise DataError(f"{data.path} has no rows")
        self.data = data
        self.batch_size = batch_size
        self.epoch = 0
        self.position = 0  # start of the next iteration, in rows of all ranks
        self._shuffle = as_bool("shuffle", shuffle)
        self._seed = seed
        self._even = even
        self._threads = threads
        self._least = least
        self._placement = None if rank is None or size is None else (rank, size)
        self._whole = scan.bytes * 2 <= memory  # read once, and then kept in memory
        self._blocks = scan.blocks(
            scan.bytes if self._whole else min(_TOGETHER, memory // _TOGETHER_PART)
        )
        largest = max(sum(group.size for group in block) for block in self._blocks)
        self._lanes = lanes_for(len(self._blocks), largest, memory)
        most = _THREADS if threads is None else threads
        self._pieces_ahead = ahead_for(most, self._lanes, largest, memory)
        # Batches are assembled on a separate thread only if that takes long (decoding, or tensors
        # of kept rows) or would wait for files; otherwise another thread only slows the others
        # down.
        encoded = any(column.kind == "encoded" for column in scan.columns)
        self._apart = most > 0 and (encoded or self._whole or self._pieces_ahead < self._lanes)
        self._files = ParquetFiles(data)
        self._kept: Arrays | None = None
        self._spare: list[PieceMemory] = []
        # the epoch of the last loop, and the number of batches that it has yielded
        self._running: tuple[_Epoch, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # kept rows stay in this process; the process that opens the pickle reads its own
        return {**self.__dict__, "_kept": None, "_spare": []}

    @property
    def weighted(self) -> bool:
        """Return whether batches have weights."""
        return self.data.weight is not None or self._even == "weights"

    def __len__(self) -> int:
        """Return the number of batches of the next iteration."""
        return self._begin().steps.count

    def __iter__(self) -> Iterator[Any]:
        epoch = self._begin()
        if not epoch.steps.count:
            raise DataError(
                f"{self.data.rows - epoch.begin} rows of {self.data.path} are fewer than one batch"
                f" of {self.batch_size} on each of {epoch.size} ranks, so even='drop' drops all."
                " Use smaller batches, or another even="
            )
        done, process = 0, os.getpid()
        for batches in self._ahead(epoch):
            for batch in batches:
                done += 1
                self._running = (epoch, done)
                # set before the last batch is yielded: the loop may not request another batch
                if done == epoch.steps.count:
                    self.epoch = epoch.number + 1
                    self.position = 0
                yield batch
                if self._threads != 0 and os.getpid() != process:
                    raise DataError(
                        "this loop began in the parent process, whose reader threads do not"
                        " survive a fork. Start a new loop in this process, or read without threads"
                        " (threads=0)"
                    )

    # Progress of the training.

    def set_epoch(self, epoch: int) -> None:
        """Select the next epoch. A partial epoch restored by ``load_state_dict`` resumes at its
        position.
        """
        epoch = as_int("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch = epoch
            self.position = 0
        self._running = None

    def state_dict(self, steps: int | None = None) -> dict[str, int]:
        """Return the progress of the training, for any number of ranks.

        ``steps``: the number of completed batches of this iteration; by default all yielded ones,
        which is too many where batches are prefetched (Keras, tf.data). A finished iteration counts
        until the first batch of the next one.
        """
        epoch, handed = self._running or (self._begin(), 0)
        done = handed if steps is None else steps
        number, position = epoch.number, epoch.begin + epoch.steps.done(done)
        if done and done >= epoch.steps.count:
            number, position = number + 1, 0
        return {"epoch": number, "position": position, **self._kind()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from a ``state_dict()``, which may come from a job with a different number of
        ranks or batch size. Raises DataError if it belongs to a different order of the rows.
        """
        mine = self._kind()
        theirs = {name: state.get(name) for name in mine}
        if mine != theirs:
            raise DataError(
                f"the state belongs to a different order: it has {theirs}, but {self.data.path} has"
                f" {mine}. Use the same files, seed=, shuffle=, memory=, columns, shapes= and"
                " dtypes= as before, or begin an epoch with set_epoch()"
            )
        epoch, position = (
            as_int("epoch", state["epoch"], 0),
            as_int("position", state["position"], 0),
        )
        if position >= self.data.rows:
            raise DataError(
                f"position={position} of the state must be less than the {self.data.rows} rows of"
                " an epoch"
            )
        self.epoch = epoch
        self.position = position
        self._running = None

    def _kind(self) -> dict[str, int]:
        """Return the facts that determine the order, apart from the epoch.

        Memory and columns affect it through blocks and lanes.
        """
        lengths = [sum(group.rows for group in block) for block in self._blocks]
        cut = (SHUFFLE, self._lanes, lengths) if self._shuffle else ()
        return {"rows": self.data.rows, "seed": self._seed, "order": zlib.crc32(repr(cut).encode())}

    # Reading.

    def _begin(self) -> _Epoch:
        rank, size = self._placement or _world()
        number, begin = self.epoch, self.position
        steps = self._steps(begin, rank, size)
        # fewer rows than a batch, left by a different number of ranks: drop them
        if begin and not steps.count:
            number, begin = number + 1, 0
            steps = self._steps(begin, rank, size)
        return _Epoch(number, begin, rank, size, steps)

    def _steps(self, begin: int, rank: int, size: int) -> Steps:
        """Return a rank's batches of the rows from ``begin`` on."""
        return Steps(
            left=self.data.rows - begin,
            batch_size=self.batch_size,
            rank=rank,
            size=size,
            even=self._even,
            least=self._least,
        )

    def _ahead(self, epoch: _Epoch) -> Iterator[list[Any]]:
        chunks = _Iteration(self, epoch)
        if not self._apart:
            yield from chunks._iterate()
            return
        ahead = Prefetch(chunks, _CHUNKS_AHEAD)
        try:
            yield from ahead.batches()
        finally:  # also when the consumer stops early
            ahead.close()

    def _readers(self) -> int:
        """Return the number of threads that read ahead."""
        if self._threads is None:
            return _THREADS if not self._files.near or _cores() > _THREADS else 1
        return self._threads

    def _parts(self, number: int) -> Iterator[Arrays]:
        return self._files.parts(self._blocks[number])

    def _block(self, number: int) -> Arrays:
        if not self._whole:
            return self._files.read(self._blocks[number])
        if self._kept is None:
            self._kept = self._files.read(self._blocks[number])
        return self._kept


class _Iteration:
    """One epoch of a reader, in chunks of several batches each."""

    def __init__(self, reader: Reader, epoch: _Epoch) -> None:
        self._reader = reader
        self._epoch = epoch
        self._columns = reader.data.scan.columns
        self._blocks: list[tuple[RowGroup, ...]] = reader._blocks
        lengths = [sum(group.rows for group in block) for block in self._blocks]
        self._order = Order(lengths, reader._lanes, reader._seed, epoch.number, reader._shuffle)

    def _iterate(self) -> Iterator[list[Any]]:
        epoch, reader = self._epoch, self._reader
        strands = self._order.strands(epoch.begin, epoch.rank, epoch.size)
        chunks = Chunks(
            order=self._order,
            strands=strands,
            columns=self._columns,
            read=reader._block,
            parts=reader._parts,
            threads=reader._readers(),
            ahead=reader._pieces_ahead,
            spare=reader._spare,
            kept=reader._whole,
        )
        together, first, taken = self._together(), 0, 0
        try:
            while first < epoch.steps.count:
                inside = chunks.in_one_part()
                most = (
                    together
                    if inside is None
                    else max(1, min(together, inside // reader.batch_size))
                )
                steps = [
                    epoch.steps[step] for step in range(first, min(first + most, epoch.steps.count))
                ]
                rows = sum(step.rows for step in steps)
                arrays = chunks.take(rows)
                self._decode(arrays, chunks, taken)
                yield self._batches(arrays, steps)
                first, taken = first + len(steps), taken + rows
        finally:
            chunks.close()

    def _together(self) -> int:
        width = sum(
            int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in self._columns
        )
        rows = min(_CHUNK_BYTES // max(width, 1), _CHUNK_ROWS)
        return max(1, rows // self._reader.batch_size)

    def _batches(self, arrays: dict[str, Array], steps: list[BatchRows]) -> list[Any]:
        batches, begin = [], 0
        for step in steps:
            batch = {name: array[begin : begin + step.rows] for name, array in arrays.items()}
            begin += step.rows
            if step.length > step.rows:
                batch = self._padded(batch, step)
            batches.append(self._reader.data.batch(batch, self._weight(batch, step)))
        return batches

    def _padded(self, batch: dict[str, Array], step: BatchRows) -> dict[str, Array]:
        """Pad a batch to ``step.length`` rows by repeating the rank's rows, or the epoch's last row
        if it has none.
        """
        if self._reader._even == "exact":
            logger.warning(
                "%d rows remain for %d ranks; ranks without a row repeat the last one",
                step.all_rows,
                self._epoch.size,
            )
        rows = np.arange(step.length) % max(step.rows, 1)
        source = batch if step.rows else self._last_row()
        return {name: array[rows] for name, array in source.items()}

    def _last_row(self) -> dict[str, Array]:
        position = self._order.rows - 1
        block, row = self._order.find(position)
        arrays = {name: array[row : row + 1] for name, array in self._reader._block(block).items()}
        for column in self._columns:
            if column.kind == "encoded":
                arrays[column.name] = np.stack([self._decoded(arrays[column.name][0], column)])
        return arrays

    def _weight(self, batch: Arrays, step: BatchRows) -> Array | None:
        """Return the weight of each row: from its column, and 0 for a repeated row."""
        name = self._reader.data.weight
        own = None if name is None else batch[name].astype(np.float32, copy=False).reshape(-1)
        if self._reader._even != "weights":
            return own
        factor = np.zeros(step.length, np.float32)
        factor[: step.rows] = self._epoch.size * step.length / step.all_rows
        return factor if own is None else own * factor

    def _decode(self, arrays: dict[str, Array], chunks: Chunks, taken: int) -> None:
        """Replace bytes with decoded arrays. ``taken``: the index of the first row of the arrays
        among the rank's rows.
        """
        for column in self._columns:
            if column.kind != "encoded":
                continue
            values = arrays[column.name]
            rows = np.empty((len(values), *column.shape), column.dtype)

            def decode(
                index: int, column: Column = column, values: Array = values, rows: Array = rows
            ) -> None:
                try:
                    rows[index] = self._decoded(values[index], column)
                except DataError as error:
                    location, row = self._where(taken + index)
                    raise location.error(column.name, row, str(error)) from error.__cause__

            chunks.map(decode, range(len(values)))
            arrays[column.name] = rows

    def _decoded(self, value: bytes, column: Column) -> Array:
        """Return one row's array. Without ``dtypes=`` the first row determines the dtype, which may
        be too narrow.
        """
        array = decoded(value, column)
        declared = column.name in self._reader.data.column_options.dtypes
        if not declared and not np.can_cast(array.dtype, column.dtype, "same_kind"):
            raise DataError(
                f"decode returned {array.dtype}, but the first row has {column.dtype}; pass"
                f" dtypes={{{column.name!r}: {array.dtype.name!r}}}"
            )
        return fitting(array, column)

    def _where(self, index: int) -> tuple[RowLocation, int]:
        """Return the file of the rank's row, and its row in that file."""
        block, row = self._order.find(
            self._epoch.begin + self._epoch.rank + self._epoch.size * index
        )
        for group in self._blocks[block]:
            if row < group.rows:
                break
            row -= group.rows
        return self._reader.data.location(self._reader.data.scan.files[group.file]), group.row + row


def _world() -> tuple[int, int]:
    """Return this process's rank and the job's size; before ``init()``, from the launcher's
    settings.
    """
    if context.is_initialized():
        refuse_shares("a Parquet reader")
        return context.rank(), context.size()
    placement = Placement.from_env()
    return max(placement.rank, 0), max(placement.size, 1)


def _cores() -> int:
    """Return this rank's share of the host's cores."""
    local = context.local_size() if context.is_initialized() else Placement.from_env().local_size
    return cores() // max(local, 1)
