"""The values of Lightning's epochs, and the state kept after each."""

from __future__ import annotations

from typing import Any

import torch

import farandole.torch as hvd
from farandole.estimators.batches import Batches
from farandole.estimators.progress import parted
from farandole.estimators.trainers.base import Training, mean_over_ranks
from farandole.estimators.trainers.lightning.losses import Losses
from farandole.estimators.trainers.torch.state import average_buffers, packed


class Epochs:
    """A callback that records each epoch's values over all ranks, and ends training.

    It is mixed into Lightning's Checkpoint, because those callbacks run after the module's own
    hooks, which may log.
    """

    def __init__(
        self, training: Training, held: Batches | None, losses: Losses, state: dict[str, Any] | None
    ) -> None:
        self._training = training
        self._losses = losses
        self._state = state
        self._held = 0 if held is None else held.of_rank

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if self._state is not None:
            module.load_state_dict(self._state["model"])
            for optimizer, state in zip(trainer.optimizers, self._state["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            for config, state in zip(
                trainer.lr_scheduler_configs, self._state["schedulers"], strict=True
            ):
                config.scheduler.load_state_dict(state)
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        torch.manual_seed(self._training.seed(trainer.current_epoch))
        self._losses.begin()
        self._validated = False
        self._training.progress.begin_epoch(trainer.current_epoch, trainer.accumulate_grad_batches)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, step: int) -> None:
        self._losses.next_batch()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._validated = True
        average_buffers(module)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if not self._validated:
            average_buffers(module)
        numbers, held = parted(
            {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        )
        loss, numbers = self._losses.mean(), mean_over_ranks(numbers, self._losses.rows)
        if loss is not None:
            numbers = {"loss": loss, **numbers}
        # Values of this epoch only: Lightning also keeps values of earlier epochs.
        validation = mean_over_ranks(held, self._held) if self._validated else None
        state = {
            "model": module.state_dict(),
            "optimizers": [each.state_dict() for each in trainer.optimizers],
            "schedulers": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        }
        if self._training.progress.end_epoch(
            trainer.current_epoch,
            numbers,
            validation,
            lambda: packed(state),
            lambda: packed({"model": module.state_dict()}),
            self._training.batches.state(),
        ):
            trainer.should_stop = True
