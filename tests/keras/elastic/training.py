"""A program without code for elastic jobs, and its faults."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

# with batches of one row none is smaller than others, which would be traced again
ROWS, BATCH, EPOCHS = 60, 1, 6
STEPS = 20  # of an epoch with data that fit does not divide
SIZES = (3, 2, 3)  # of the job: a rank is lost, and a new one joins


class Done(NamedTuple):
    """The result of a rank."""

    process: int
    size: int
    seen: list[float]  # how often each row was trained on
    history: dict[str, list[float]]
    epochs: list[int]
    stopping: dict[str, Any]  # of EarlyStopping
    begun: int  # calls of on_train_begin
    sizes: list[int]
    traces: int  # of the compiled step after the first epoch
    steps: list[tuple[int, int]]  # epoch and batch, as callbacks saw them


_awaited: set[int] = set()  # the sizes of jobs that have a new process


def await_another(hvd: Any) -> None:
    """Wait until a new process can join, and then briefly in each step, until a commit sees it."""
    from farandole.job import context

    deadline = time.monotonic() + 120
    if hvd.rank() == 0 and hvd.size() not in _awaited:
        while context.notice() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        _awaited.add(hvd.size())
    time.sleep(0.1)


def faults_of(base: type, hvd: Any) -> Any:
    """Return a callback that ends process 1 in the middle of the second epoch, and then delays the
    others until a new process has started.
    """
    process = int(os.environ["FARANDOLE_MEMBER"])

    class Faults(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.begun = 0
            self.sizes: list[int] = []
            self.steps: list[tuple[int, int]] = []
            self.epoch = 0

        def on_train_begin(self, logs: Any = None) -> None:
            self.begun += 1
            self.sizes, self.steps = [], []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.epoch == 1 and batch == 4 and process == 1:
                os._exit(1)
            if self.epoch >= 2 and hvd.size() == 2:
                await_another(hvd)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps.append((self.epoch, batch))
            if [hvd.size()] != self.sizes[-1:]:
                self.sizes.append(hvd.size())

    return Faults()


def check(results: list[Done], epochs: int = EPOCHS) -> None:
    """Check that every epoch ran once, with every row, and the same on all ranks."""
    check_ranks(results, epochs)
    seen = results[0].seen
    assert min(seen) == epochs, seen
    assert sum(seen) <= epochs * ROWS + 8  # a few fill up the last batches


def check_ranks(results: list[Done], epochs: int = EPOCHS) -> None:
    """Check that every epoch ran once, the same on all ranks, and that nothing was compiled again."""
    assert [done.size for done in results] == [SIZES[-1]] * SIZES[-1]
    assert sorted(done.process for done in results) == [0, 2, 3]
    assert len({tuple(done.seen) for done in results}) == 1
    for done in results:
        assert done.epochs == list(range(epochs))
        assert len(done.history["loss"]) == epochs
        assert done.history == results[0].history
        assert done.stopping == results[0].stopping
        assert done.begun == 1
    survivors = [done for done in results if done.process != 3]
    for done in survivors:
        assert tuple(done.sizes) == SIZES
        assert done.traces == 0
        assert len(set(done.steps)) == len(done.steps), done.steps
        assert done.steps == sorted(done.steps)
