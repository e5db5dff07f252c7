"""A LightningModule (Lightning 2), trained by a ``Trainer`` on this rank's rows.

Lightning is two packages, ``lightning.pytorch`` and ``pytorch_lightning``, with the same classes twice, of which
neither knows the other's: all that is made here is of the module's own package.
"""

from __future__ import annotations

import functools
import importlib
import io
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import farandole.torch as hvd
from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.torch import floating, inputs_of, label_of, tensor_of
from farandole.estimators.progress import Progress
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.device import number
from farandole.estimators.trainers.torch import average_buffers

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def package_of(model: Any) -> str | None:
    """The package whose LightningModule ``model`` is; None if it is a plain module."""
    for kind in type(model).__mro__:
        for package in PACKAGES:
            if kind.__name__ == "LightningModule" and kind.__module__.startswith(f"{package}."):
                return package
    return None


def train(spec: Spec) -> Result | None:
    """On every rank; the result on rank 0."""
    hvd.init()
    payload, ranks = spec.payload, (hvd.rank(), hvd.size())
    device = torch.device("cpu")
    if spec.use_gpu and torch.cuda.is_available():
        device = torch.device("cuda", number(hvd.local_rank(), torch.cuda.device_count()))
    batches = Batches(spec.train, spec.columns, spec.train_reading, *ranks)
    progress = Progress(spec, hvd.rank(), batches.rows, len(batches))
    found = progress.begin()
    losses = Losses()
    pl, strategy, noting, silent = _classes(package_of(payload["model"]) or PACKAGES[0])
    module = shared(payload["model"], spec, losses)
    epochs = noting(spec, progress, batches, losses, None if found is None else found.state)
    arguments = dict(payload["trainer_args"])
    own = arguments.pop("callbacks", None) or []
    callbacks = [*payload["callbacks"], *(own if isinstance(own, list | tuple) else [own]), epochs]
    if found is not None:
        batches.load(found.data)
    loaders: dict[str, Any] = {"train_dataloaders": _loader(batches, module, spec, losses)}
    if spec.validation is not None:
        held = Batches(spec.validation, spec.columns, spec.validation_reading, *ranks)
        loaders["val_dataloaders"] = _loader(held, module, spec)
    trainer = pl.Trainer(**{
        "strategy": strategy(device), "accelerator": "gpu" if device.type == "cuda" else "cpu", "devices": 1,
        "max_epochs": spec.epochs, "logger": (payload["logger"] if hvd.rank() == 0 else None) or silent(),
        "log_every_n_steps": payload["log_every_n_steps"], "profiler": payload["profiler"],
        "detect_anomaly": payload["terminate_on_nan"], "callbacks": callbacks,
        "enable_progress_bar": False, "enable_model_summary": False,
        "num_sanity_val_steps": 0, "use_distributed_sampler": False, **arguments,
    })  # fmt: skip
    first = trainer.fit_loop.epoch_progress.current
    first.processed = first.completed = progress.first
    if progress.first < spec.epochs:
        trainer.fit(module, **loaders)
    elif found is not None:
        module.load_state_dict(_opened(found.state)["model"])
    return progress.result(lambda: _packed({"model": module.state_dict()}))


class Ranks:
    """A strategy, mixed into Lightning's for one device: that of this process, and others in other processes, whose
    gradients the optimizer averages."""

    strategy_name = "farandole"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)  # type: ignore[call-arg]
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


class Losses:
    """Of this rank's batches in an epoch: their sum over rows, the rows that have one, and all rows. A batch is a dict
    of the user's columns alone, so its share, and the rows that count, go beside it."""

    def __init__(self) -> None:
        self.coming: deque[tuple[float, int]] = deque()  # of batches that were read ahead
        self.share, self.of_batch = 1.0, 0
        self.begin()

    def next_batch(self) -> None:
        self.share, self.of_batch = self.coming.popleft()

    def begin(self) -> None:
        self.total, self.counted, self.rows = torch.zeros((), dtype=torch.float64), 0, 0

    def add(self, loss: Any) -> None:
        rows = self.of_batch
        self.rows += rows
        if loss is not None and rows:
            self.total = self.total + loss.detach().double().cpu() * rows
            self.counted += rows

    def mean(self) -> float | None:
        """Over the rows of all ranks; None if there was no loss, as a module that optimizes by itself may have none."""
        total, counted = hvd.allreduce(torch.stack([self.total, torch.tensor(self.counted).double()]), op=hvd.Sum)
        return float(total / counted) if counted else None


def shared(module: Any, spec: Spec, losses: Losses) -> Any:
    """The module, with optimizers that average gradients, and losses that count as this rank's part of the rows."""
    kind = type(module)

    class Shared(kind):  # type: ignore[valid-type,misc]
        def configure_optimizers(self) -> Any:
            return _distributed(super().configure_optimizers(), self, spec)

        @functools.wraps(kind.training_step)  # Lightning looks at its arguments
        def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            found = super().training_step(batch, *args, **kwargs)
            loss = found.get("loss") if isinstance(found, Mapping) else found
            losses.add(loss)
            if loss is None or losses.share == 1:
                return found
            return {**found, "loss": loss * losses.share} if isinstance(found, Mapping) else loss * losses.share

    Shared.__name__, Shared.__qualname__ = kind.__name__, kind.__qualname__
    module.__class__ = Shared
    return module


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

    def __init__(self, batches: Batches, module: Any, spec: Spec, losses: Losses | None) -> None:
        self._batches, self._module, self._spec, self._losses = batches, module, spec, losses

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._losses is None:  # of validation: all rows again
            self._batches.rewind()
        else:
            self._losses.coming.clear()
        for batch in self._batches:
            if self._losses is not None:
                self._losses.coming.append((batch.share, batch.rows))
            yield given(batch, self._spec, self._module)


def given(batch: Batch, spec: Spec, module: Any) -> dict[str, Any]:
    """Tensors by the names of the columns. Whole numbers in columns that transformation_fn adds stay so, and under
    Horovod's names those of features, too, as modules written for it expect them."""
    columns, payload, cpu = spec.columns, spec.payload, torch.device("cpu")
    arrays = dict(batch.others) or dict(zip(columns.features, batch.inputs, strict=True))
    shapes = dict(zip(columns.features, payload["input_shapes"] or (), strict=False))
    found = {}
    for name, array in arrays.items():
        kept = array.dtype.kind in "iu" and (columns.by_row or name not in columns.all)
        whole = name in payload["categories"] or (kept and name not in payload["numbers"])
        if name in columns.labels and name not in columns.features:
            found[name] = label_of(array, module)
        else:
            found[name] = inputs_of([array], [whole], [shapes.get(name)], floating(module), cpu)[0]
    for name, array in () if batch.others else zip(columns.labels, batch.labels, strict=True):
        if name not in found:
            found[name] = label_of(array, module)
    if columns.weight is not None and batch.weight is not None:
        found[columns.weight] = tensor_of(batch.weight)
    return found


def _loader(batches: Batches, module: Any, spec: Spec, losses: Losses | None = None) -> Any:
    return torch.utils.data.DataLoader(_Rows(batches, module, spec, losses), batch_size=None)


class Epochs:
    """A callback that notes each epoch's numbers, over all ranks, and ends training. Mixed into Lightning's Checkpoint,
    as those are called after the module's own hooks, which may log."""

    def __init__(
        self, spec: Spec, progress: Progress, batches: Batches, losses: Losses, state: bytes | None
    ) -> None:  # fmt: skip
        self._spec, self._progress, self._batches, self._losses, self._state = spec, progress, batches, losses, state
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
        self._losses.begin()
        self._validated = False
        self._progress.begin_epoch(trainer.current_epoch, trainer.accumulate_grad_batches)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, step: int) -> None:
        self._losses.next_batch()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._validated = True
        average_buffers(module)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if not self._validated:
            average_buffers(module)
        numbers = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        training = {name: value for name, value in numbers.items() if not name.startswith("val_")}
        loss, training = self._losses.mean(), _everybody(training, self._losses.rows)
        if loss is not None:
            training = {"loss": loss, **training}
        validation = None
        if self._validated:  # in this epoch: Lightning keeps the numbers of those before
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


@functools.cache
def _classes(package: str) -> tuple[Any, type, type, type]:
    """The package, the strategy and the callback of its kind, and its logger that logs nothing: without any, callbacks
    (LearningRateMonitor) raise, and ``self.logger.experiment`` of modules."""
    pl, strategies = importlib.import_module(package), importlib.import_module(f"{package}.strategies")
    return (
        pl, type("Ranks", (Ranks, strategies.SingleDeviceStrategy), {}),
        type("Epochs", (Epochs, pl.callbacks.Checkpoint), {}),
        importlib.import_module(f"{package}.loggers.logger").DummyLogger,
    )  # fmt: skip


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
