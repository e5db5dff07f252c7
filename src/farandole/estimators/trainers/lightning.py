"""A LightningModule (Lightning 2), trained by a ``Trainer`` on this rank's rows."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

import farandole.torch as hvd
from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.torch import floating, inputs_of, tensor_of
from farandole.estimators.progress import Progress
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.device import number
from farandole.estimators.trainers.torch import average_buffers

SHARE, ROWS = "_share", "_rows"  # in a batch, until the module gets it


def train(spec: Spec) -> Result | None:
    """On every rank; the result on rank 0."""
    hvd.init()
    payload, ranks = spec.payload, (hvd.rank(), hvd.size())
    device = torch.device("cpu")
    if spec.use_gpu and torch.cuda.is_available():
        device = torch.device("cuda", number(hvd.local_rank(), torch.cuda.device_count()))
    batches = Batches(spec.train, spec.columns, spec.train_reading, *ranks)
    progress = Progress(spec, hvd.rank(), batches.rows)
    found = progress.begin()
    module = shared(payload["model"], spec)
    epochs = Epochs(spec, progress, batches, None if found is None else found.state)
    if found is not None:
        batches.load(found.data)
    loaders: dict[str, Any] = {"train_dataloaders": _loader(batches, module, spec)}
    if spec.validation is not None:
        held = Batches(spec.validation, spec.columns, spec.validation_reading, *ranks)
        loaders["val_dataloaders"] = _loader(held, module, spec, again=True)
    trainer = pl.Trainer(**{
        "strategy": Ranks(device), "accelerator": "gpu" if device.type == "cuda" else "cpu", "devices": 1,
        "max_epochs": spec.epochs, "logger": payload["logger"] if hvd.rank() == 0 and payload["logger"] else False,
        "log_every_n_steps": payload["log_every_n_steps"], "profiler": payload["profiler"],
        "detect_anomaly": payload["terminate_on_nan"], "callbacks": [*payload["callbacks"], epochs],
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "num_sanity_val_steps": 0, "use_distributed_sampler": False, **payload["trainer_args"],
    })  # fmt: skip
    first = trainer.fit_loop.epoch_progress.current
    first.processed = first.completed = progress.first
    if progress.first < spec.epochs:
        trainer.fit(module, **loaders)
    elif found is not None:
        module.load_state_dict(_opened(found.state)["model"])
    return progress.result(lambda: _packed({"model": module.state_dict()}))


class Ranks(SingleDeviceStrategy):  # type: ignore[misc]
    """One device in this process, and others in other processes, whose gradients the optimizer averages."""

    strategy_name = "farandole"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.global_rank, self.local_rank, self.world_size = hvd.rank(), hvd.local_rank(), hvd.size()

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        total = str(reduce_op).rpartition(".")[2].lower() == "sum"
        return hvd.allreduce(tensor, op=hvd.Sum if total else hvd.Average)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        return hvd.allgather(tensor.unsqueeze(0))

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, src)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        agreed = hvd.allreduce(torch.tensor(float(decision)), op=hvd.Min if all else hvd.Max)
        return bool(agreed.item())


def shared(module: Any, spec: Spec) -> Any:
    """The module, with optimizers that average gradients, and losses that count as this rank's part of the rows."""
    kind = type(module)

    class Shared(kind):  # type: ignore[valid-type,misc]
        losses: tuple[float, int] = (0.0, 0)  # their sum over rows of the epoch, and the rows

        def configure_optimizers(self) -> Any:
            return _distributed(super().configure_optimizers(), self, spec)

        def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            mine, share, rows = _taken(batch)
            found = super().training_step(mine, *args, **kwargs)
            loss = found["loss"] if isinstance(found, Mapping) else found
            if loss is None:
                return None
            self.losses = (self.losses[0] + loss.detach().double() * rows, self.losses[1] + rows)
            return {**found, "loss": loss * share} if isinstance(found, Mapping) else loss * share

        def validation_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            return super().validation_step(_taken(batch)[0], *args, **kwargs)

    Shared.__name__, Shared.__qualname__ = kind.__name__, kind.__qualname__
    module.__class__ = Shared
    return module


def _taken(batch: Any) -> tuple[dict[str, Any], Any, int]:
    mine = dict(batch)
    return mine, mine.pop(SHARE), int(mine.pop(ROWS))


def _distributed(found: Any, module: Any, spec: Spec) -> Any:
    """What ``configure_optimizers`` gave, with each optimizer wrapped, also in its schedulers."""
    wrapped: dict[int, Any] = {}
    passes = int(spec.payload["trainer_args"].get("accumulate_grad_batches", 1))
    given: dict[str, Any] = {"backward_passes_per_step": passes}
    if spec.compression is not None:
        given["compression"] = spec.compression

    def of(value: Any) -> Any:
        if isinstance(value, torch.optim.Optimizer):
            if id(value) not in wrapped:
                own = {id(each) for group in value.param_groups for each in group["params"]}
                names = [(name, each) for name, each in module.named_parameters() if id(each) in own]
                wrapped[id(value)] = hvd.DistributedOptimizer(value, named_parameters=names, **given)
            return wrapped[id(value)]
        if isinstance(value, list | tuple):
            return type(value)(of(each) for each in value)
        if isinstance(value, dict):
            return {name: of(each) for name, each in value.items()}
        if isinstance(getattr(value, "optimizer", None), torch.optim.Optimizer):
            value.optimizer = of(value.optimizer)
        return value

    return of(found)


class _Rows(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches as dicts of tensors by column, as Horovod's modules take them."""

    def __init__(self, batches: Batches, module: Any, spec: Spec, again: bool) -> None:
        self._batches, self._module, self._spec, self._again = batches, module, spec, again

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._again:
            self._batches.rewind()
        for batch in self._batches:
            yield given(batch, self._spec, self._module)


def given(batch: Batch, spec: Spec, module: Any) -> dict[str, Any]:
    columns, payload, cpu = spec.columns, spec.payload, torch.device("cpu")
    whole = [name in payload["categories"] for name in columns.features]
    inputs = inputs_of(batch.inputs, whole, payload["input_shapes"], floating(module), cpu)
    found = dict(zip(columns.features, inputs, strict=True))
    for name, array in zip(columns.labels, batch.labels, strict=True):
        label = tensor_of(array)
        if name not in found:
            found[name] = label.to(floating(module)) if label.is_floating_point() else label.long()
    if columns.weight is not None and batch.weight is not None:
        found[columns.weight] = tensor_of(batch.weight)
    return {**found, SHARE: torch.tensor(batch.share), ROWS: torch.tensor(batch.rows)}


def _loader(batches: Batches, module: Any, spec: Spec, again: bool = False) -> Any:
    return torch.utils.data.DataLoader(_Rows(batches, module, spec, again), batch_size=None)


class Epochs(pl.Callback):  # type: ignore[misc]
    """Notes each epoch's numbers, over all ranks, and ends training."""

    def __init__(self, spec: Spec, progress: Progress, batches: Batches, state: bytes | None) -> None:
        self._spec, self._progress, self._batches, self._state = spec, progress, batches, state
        self._held = 0 if spec.validation is None else len(
            range(hvd.rank(), spec.validation.rows, hvd.size())
        )  # fmt: skip

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if self._state is not None:
            found = _opened(self._state)
            module.load_state_dict(found["model"])
            for optimizer, state in zip(trainer.optimizers, found["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            for config, state in zip(trainer.lr_scheduler_configs, found["schedulers"], strict=True):
                config.scheduler.load_state_dict(state)
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        seed = np.random.SeedSequence([self._spec.seed, trainer.current_epoch, hvd.rank()]).generate_state(1)[0]
        torch.manual_seed(int(seed))
        module.losses = (0.0, 0)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, step: int) -> None:
        self._progress.step(trainer.current_epoch, step, self._batches.rows // max(len(self._batches), 1))

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        average_buffers(module)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if self._spec.validation is None:
            average_buffers(module)
        total, rows = module.losses
        numbers = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        training = {name: value for name, value in numbers.items() if not name.startswith("val_")}
        training = _everybody({"loss": float(total) / max(rows, 1), **training}, rows)
        validation = None
        if self._spec.validation is not None:
            held = {name[4:]: value for name, value in numbers.items() if name.startswith("val_")}
            validation = _everybody(held, self._held)
        state = {
            "model": module.state_dict(), "optimizers": [each.state_dict() for each in trainer.optimizers],
            "schedulers": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        }  # fmt: skip
        if self._progress.end_epoch(
            trainer.current_epoch, training, validation, lambda: _packed(state),
            lambda: _packed({"model": module.state_dict()}), self._batches.state(),
        ):  # fmt: skip
            trainer.should_stop = True


def _everybody(numbers: Mapping[str, float], rows: int) -> dict[str, float]:
    """Means over the rows of all ranks."""
    values = torch.tensor([*numbers.values(), 1.0], dtype=torch.float64) * rows
    total = hvd.allreduce(values, op=hvd.Sum)
    return dict(zip(numbers, (total[:-1] / total[-1]).tolist(), strict=True))


def _packed(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _opened(state: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)
    return found
