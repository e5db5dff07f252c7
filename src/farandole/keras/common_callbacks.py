"""Callbacks common to Keras 2 and Keras 3, as base classes that precede either one's Callback."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from farandole.job import context
from farandole.job.config.rank_variables import RUN_VARIABLE
from farandole.keras.schedules import Schedule, multiplier_of, warmup_factor


class LearningRates:
    """Set the learning rate to ``initial_lr * multiplier(epoch)`` from ``start_epoch`` to
    ``end_epoch``.

    ``multiplier``: a function of the epoch, or a number m, which means m ** (epoch - start_epoch).
    ``staircase``: change the rate only at the first batch of an epoch; otherwise it changes at
    every batch, with a fractional epoch. ``momentum_correction``: scale the momentum by new rate /
    old rate for the batch at which the rate changes (Goyal et al. 2017).
    """

    params: Any
    model: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        staircase = staircase or not callable(multiplier)
        self.schedule = Schedule(
            initial_lr, multiplier_of(multiplier, start_epoch), start_epoch, end_epoch, staircase
        )
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = start_epoch

    def rate_of(self, optimizer: Any) -> float:
        """Return the optimizer's current learning rate."""
        raise NotImplementedError

    def scale_momentum(self, optimizer: Any, factor: float) -> None:
        """Scale the velocities accumulated at the old learning rate by ``factor``.

        For one step, this is equivalent to scaling the momentum coefficient, which Keras has
        compiled into the step.
        """
        raise NotImplementedError

    def on_train_begin(self, logs: Any = None) -> None:
        if self.schedule.initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        if not self.schedule.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the"
                    f" steps_per_epoch parameter to the {type(self).__name__}() or upgrade to the"
                    " latest version of Keras."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        rate = self.schedule.rate(self.current_epoch, batch, self.steps_per_epoch or 1)
        if rate is None:
            return
        optimizer = self.model.optimizer
        old = self.rate_of(optimizer)
        optimizer.learning_rate = rate
        if self.momentum_correction and old > 0 and rate != old:
            self.scale_momentum(optimizer, rate / old)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = self.rate_of(self.model.optimizer)


class WarmUp(LearningRates):
    """Raise the learning rate from ``initial_lr`` / size to ``initial_lr`` over ``warmup_epochs``,
    batch by batch.

    ``initial_lr``: the rate for all ranks together, which is the rate for one rank times
    ``size()``. With ``--fixed-global-batch`` the number of shares replaces ``size()``.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of an epoch gets the whole epoch number. The callback may be created
            # outside of any rank, such as on an estimator's driver.
            return warmup_factor(
                epoch + 1 / (self.steps_per_epoch or 1),
                context.shares() or context.size(),
                warmup_epochs,
            )

        super().__init__(
            initial_lr,
            multiplier,
            0,
            warmup_epochs,  # type: ignore[arg-type]
            False,
            momentum_correction,
            steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        end = self.schedule.end_epoch
        if (
            end is not None
            and epoch == math.ceil(end) - 1
            and self.verbose > 0
            and context.rank() == 0
        ):
            rate = self.rate_of(self.model.optimizer)
            sys.stdout.write(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n"
            )


class Best:
    """A ModelCheckpoint that keeps the best model. Set its ``filepath`` before training."""

    ENDINGS = (".keras", ".weights.h5")  # of whole models, and of weights only

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            "best" + self.ENDINGS[save_weights_only],
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,  # type: ignore[call-arg]
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint has no filepath. Set it: callback.filepath = 'best.keras'"
            )
        super().on_train_begin(logs)  # type: ignore[misc]


# States of elastic jobs.


class CommitState:
    """Call ``state.commit()`` every ``batches_per_commit`` batches and at the end of each epoch."""

    model: Any

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.commit()

    def commit(self) -> None:
        """Commit the state. Subclasses may extend this method."""
        model = self.model  # with Keras 3 on JAX, this moves the weights back into the variables
        assert model is not None
        self.state.commit()


class UpdateBatchState:
    """Keep ``state.batch`` at the number of completed batches of the epoch; it is 0 when the epoch
    ends.

    In a resumed epoch ``params["steps"]`` is the number of remaining batches, for progress bars.
    ``fit`` still takes all batches of its data, so pass it only the remaining ones. Put this
    callback before ``CommitStateCallback``.
    """

    params: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done = 0
        self._steps: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._steps = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._done = self.state.batch
        if (self.params or {}).get("steps"):
            self._steps = self._steps or self.params["steps"]
            self.params["steps"] = self._steps - self._done

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._done + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochState:
    """Keep ``state.epoch`` at the number of completed epochs, including those before a reset.

    Use it with ``fit(epochs=24 - state.epoch)`` or ``fit(epochs=24, initial_epoch=state.epoch)``.
    Put this callback before ``CommitStateCallback``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch
        self._begun = False

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch, self._begun = self.state.epoch, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # fit already counts earlier epochs, including those restored from a backup
        if not self._begun and epoch > 0:
            self.initial_epoch = 0
        self._begun = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


class Tracking:
    """Record the metrics of each epoch in the run, under their names in ``logs``. Outside a run,
    this has no effect.

    ``fit`` in a job of several ranks does so automatically on Keras 3. ``every``: also
    record the metrics of every ``every``-th batch, as ``batch/<name>``; 0 for none.
    """

    def __init__(self, every: int = 0) -> None:
        super().__init__()
        self.every = every
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self.every and self._batches % self.every == 0:
            record_logs(
                {f"batch/{name}": value for name, value in (logs or {}).items()}, self._batches
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        record_logs(logs or {}, epoch)


def belongs_to_run() -> bool:
    """Return whether this process is a rank of a run."""
    return bool(os.environ.get(RUN_VARIABLE))


def record_logs(logs: Mapping[str, Any], step: int) -> None:
    """Record the numbers of Keras' ``logs`` if this process is a rank of a run."""
    if logs and belongs_to_run():
        # imported here because most jobs leave no run
        from farandole.job.tracking import log_metrics

        log_metrics({name: value for name, value in logs.items() if np.ndim(value) == 0}, step)
