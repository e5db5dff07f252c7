"""Lightning's ``Trainer`` on this rank's rows."""

from __future__ import annotations

import farandole.torch as hvd
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.lightning.losses import Losses
from farandole.estimators.trainers.lightning.module import shared
from farandole.estimators.trainers.lightning.packages import classes_of
from farandole.estimators.trainers.lightning.rows import loader
from farandole.estimators.trainers.torch.state import opened, packed
from farandole.estimators.trainers.torch.tensors import device_of_rank


def train(spec: Spec) -> Result | None:
    """Train on every rank, and return the result on rank 0."""
    hvd.init()
    training, payload, losses = Training(spec, hvd.rank(), hvd.size()), spec.payload, Losses()
    checkpoint, held, device = training.begin(), training.held(), device_of_rank(spec.use_gpu)
    state = None if checkpoint is None else opened(checkpoint.state)
    pl, strategy, noting, silent = classes_of(payload["model"])
    module = shared(payload["model"], training, losses)
    loaders = {"train_dataloaders": loader(training.batches, module, spec, losses)}
    if held is not None:
        loaders["val_dataloaders"] = loader(held, module, spec)
    arguments = dict(payload["trainer_args"])
    own = arguments.pop("callbacks", None) or []
    epochs = noting(training, held, losses, state)
    trainer = pl.Trainer(
        **{
            "strategy": strategy(device),
            "accelerator": "gpu" if device.type == "cuda" else "cpu",
            "devices": 1,
            "max_epochs": spec.epochs,
            "logger": (payload["logger"] if training.rank == 0 else None) or silent(),
            "log_every_n_steps": payload["log_every_n_steps"],
            "profiler": payload["profiler"],
            "detect_anomaly": payload["terminate_on_nan"],
            "callbacks": [
                *payload["callbacks"],
                *(own if isinstance(own, list | tuple) else [own]),
                epochs,
            ],
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            **arguments,
        }
    )
    first = trainer.fit_loop.epoch_progress.current
    first.processed = first.completed = training.progress.first
    if training.progress.first < spec.epochs:
        trainer.fit(module, **loaders)
    elif state is not None:
        module.load_state_dict(state["model"])
    return training.progress.result(lambda: packed({"model": module.state_dict()}))
