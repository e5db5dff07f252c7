"""The progress of a training run, for any framework: history, checkpoints, the best epoch, early
stopping, and a status line. Every rank has the same values, so all make the same decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from farandole.base.durations import readable
from farandole.base.log import logger
from farandole.core.api.objects import broadcast_object
from farandole.errors import DataError, SettingsError
from farandole.estimators.checkpoint import Checkpoint, last_of, write
from farandole.estimators.spec import Result, Spec, Watching
from farandole.job.report import messages, training_progress


class Best:
    """The best epoch so far. Pure."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching
        self.epoch: int | None = None
        self.value = 0.0
        self.last = -1

    def update(self, epoch: int, numbers: Mapping[str, float], validated: bool = True) -> bool:
        """Record an epoch, and return whether it is the best so far. An epoch without validation
        (not ``validated``) does not change the best value of a validation metric.
        """
        name = self.watching.monitor
        if name.startswith("val_") and not validated:
            return False
        self.last = epoch
        if not name:
            return False
        if name not in numbers and not self.watching.required:
            return False
        if name not in numbers:
            raise SettingsError(
                f"monitor={name!r} is not a metric of this training; it has"
                f" {', '.join(sorted(numbers))}"
            )
        value, delta = numbers[name], self.watching.min_delta
        gain = self.value - value if self.watching.mode == "min" else value - self.value
        # the value so far is NaN
        better = self.epoch is None or gain > delta or self.value != self.value
        if better and value == value:
            self.epoch = epoch
            self.value = value
            return True
        return False

    @property
    def stop(self) -> bool:
        """Return whether ``patience`` epochs have passed without improvement."""
        patience = self.watching.patience
        return (
            patience is not None
            and self.last - (-1 if self.epoch is None else self.epoch) >= patience
        )


class Progress:
    """The progress of a training run on all ranks.

    Call ``begin`` once, ``begin_epoch`` and ``end_epoch`` for each epoch, and ``result`` at the
    end. An epoch has ``rows`` rows on all ranks together, and ``batches`` batches on a rank.
    """

    def __init__(self, spec: Spec, rank: int, rows: int, batches: int) -> None:
        self._spec = spec
        self._rank = rank
        self._rows = rows
        self._batches = batches
        self.history: list[dict[str, Any]] = []
        self._best = Best(spec.watching)
        self._best_weights: bytes | None = None
        self._saves = spec.store if spec.store is not None and spec.store.saving_runs() else None
        self._began = self._epoch_began = time.monotonic()
        self._first = self._steps = 0

    def begin(self) -> Checkpoint | None:
        """Return the last checkpoint of this run, if any, on all ranks."""
        checkpoint = self._found()
        if checkpoint is not None:
            self.history = list(checkpoint.history)
            for record in self.history:
                self._best.update(record["epoch"], flat(record), "validation" in record)
            self._best_weights = checkpoint.best
            # the monitored metric has changed, and its best weights were not kept
            if self._best.epoch != checkpoint.best_epoch:
                self._best = Best(self._spec.watching)
                self._best_weights = None
            self._first = checkpoint.epoch + 1
            self._steps = checkpoint.steps
            self._compare(checkpoint.fingerprint)
            self._warn_of_extra_epochs()
        self._began = self._epoch_began = time.monotonic()
        return checkpoint

    def _found(self) -> Checkpoint | None:
        """Return the checkpoint of the ranks' elastic state, otherwise the store's."""
        kept = self._spec.kept
        found: Checkpoint | None = None if kept is None else kept.checkpoint
        if found is not None:  # equal on all ranks
            return found
        stored: Checkpoint | None = None
        if self._saves is not None and self._rank == 0 and self._spec.resume:
            stored = last_of(self._saves, self._spec.run_id)
        return broadcast_object(stored, 0)

    def _compare(self, kept: Mapping[str, Any] | None) -> None:
        """Compare this training with the checkpoint's. Raises DataError if they differ and no
        epochs remain.
        """
        mine = self._spec.fingerprint
        other = [
            name for name in mine if kept is not None and name in kept and kept[name] != mine[name]
        ]
        if not other or kept is None:
            return
        changes = "; ".join(
            f"{name} was {kept.get(name)!r} and is now {mine[name]!r}" for name in other
        )
        if self.first >= self._spec.epochs:
            raise DataError(
                f"run {self._spec.run_id!r} has ended, but with other parameters: {changes}. Use"
                " another run_id (or none), or more epochs to continue from it; for"
                " HorovodEstimator another modelDir, or more maxSteps"
            )
        if self._rank == 0:
            logger.warning(
                "run %s resumes from a checkpoint of a training with other parameters: %s",
                self._spec.run_id,
                changes,
            )

    def _warn_of_extra_epochs(self) -> None:
        """Warn if the checkpoint has more epochs than requested."""
        if self._first > self._spec.epochs and self._rank == 0:
            logger.warning(
                "run %r already has %d epochs, which is more than epochs=%d, and its model comes"
                " from all of them. To train for fewer epochs use another run_id (or none)",
                self._spec.run_id,
                self._first,
                self._spec.epochs,
            )

    @property
    def first(self) -> int:
        """Return the first epoch to train: ``epochs`` if none remain."""
        return self._spec.epochs if self._best.stop else self._first

    def begin_epoch(self, epoch: int, passes: int) -> None:
        """Configure the status line for an epoch. ``passes``: batches whose gradients make one
        step.
        """
        steps = -(-self._batches // passes)
        loss = flat(self.history[-1]).get("loss") if self.history else None
        training_progress.epoch(epoch + 1, self._spec.epochs, steps, self._rows / steps, loss)

    def end_epoch(
        self,
        epoch: int,
        train: Mapping[str, Any],
        validation: Mapping[str, Any] | None,
        state: Callable[[], bytes],
        weights: Callable[[], bytes],
        data: Mapping[str, int] | None = None,
    ) -> bool:
        """Record an epoch's values, write a checkpoint, and report them. Return whether training
        should stop. In an elastic job, raises HostsUpdatedInterrupt before ranks change.

        ``state``: returns everything needed to resume. ``weights``: returns the model's weights.
        ``data``: the reader's state.
        """
        record = {"epoch": epoch, "train": dict(train)}
        if validation is not None:
            record["validation"] = dict(validation)
        self.history.append(record)
        better = self._best.update(epoch, flat(record), validation is not None)
        kept = self._spec.kept
        if better and (self._rank == 0 or kept is not None):
            self._best_weights = weights()
        if self._rank == 0:
            self._say(epoch, flat(record))
        self._epoch_began = time.monotonic()
        if kept is not None or (self._rank == 0 and self._saves is not None):
            self._keep(self._checkpoint(epoch, state, data))
        return self._best.stop

    def result(self, weights: Callable[[], bytes]) -> Result | None:
        """Return the result on rank 0."""
        if self._rank:
            return None
        best = self._best_weights
        return Result(self.history, weights() if best is None else best, self._best.epoch)

    def _checkpoint(
        self, epoch: int, state: Callable[[], bytes], data: Mapping[str, int] | None
    ) -> Checkpoint:
        steps = self._steps + (epoch + 1 - self._first) * (self._spec.train_reading.steps or 0)
        return Checkpoint(
            epoch,
            list(self.history),
            dict(data or {}),
            state(),
            self._best_weights,
            self._best.epoch,
            steps,
            self._spec.fingerprint,
        )

    def _keep(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint to the store on rank 0, and commit it in an elastic job."""
        if self._rank == 0 and self._saves is not None:
            write(self._saves, self._spec.run_id, checkpoint)
        if self._spec.kept is not None:
            self._spec.kept.keep(checkpoint)

    def _say(self, epoch: int, numbers: Mapping[str, float]) -> None:
        if not self._spec.verbose:
            return
        now, epochs = time.monotonic(), self._spec.epochs
        rate = self._rows / max(now - self._epoch_began, 1e-9)
        left = (now - self._began) / (epoch + 1 - self._first) * (epochs - epoch - 1)
        shown = "".join(f" {name} {value:.4g}," for name, value in numbers.items())
        messages.log(
            f"epoch {epoch + 1}/{epochs}:{shown} {rate:,.0f} rows/s, {readable(left)} left"
        )


def parted(numbers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split named values into training values and validation values. The prefix "val_" of
    validation names is removed.
    """
    validation = {name[4:]: value for name, value in numbers.items() if name.startswith("val_")}
    return {
        name: value for name, value in numbers.items() if not name.startswith("val_")
    }, validation


def flat(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a record's values by name, with the prefix "val_" for validation."""
    return {
        name: float(value)
        for name, value in named(record).items()
        if isinstance(value, int | float)
    }


def named(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record in the form of ``flat``, including non-numeric values."""
    parts = (("", record["train"]), ("val_", record.get("validation") or {}))
    return {f"{prefix}{name}": value for prefix, part in parts for name, value in part.items()}
