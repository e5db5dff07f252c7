"""A PyTorch model, trained on this rank's rows."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import farandole.torch as hvd
from farandole.errors import DataError, SettingsError, did_you_mean
from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.shapes import fits
from farandole.estimators.loaders.torch import floating, inputs_of, label_of, naming, several, tensor_of
from farandole.estimators.progress import Progress, flat
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.device import number

_OF_CLASSES = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)
_OF_CLASSES_TOO = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


def train(spec: Spec) -> Result | None:
    """On every rank; the result on rank 0."""
    hvd.init()
    training = Training(spec)
    with torch.random.fork_rng(devices=[]):
        return training.run()


class Training:
    """A rank's model, and what its epochs need."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.payload = spec, spec.payload
        self.device = torch.device("cpu")
        if spec.use_gpu and torch.cuda.is_available():
            self.device = torch.device("cuda", number(hvd.local_rank(), torch.cuda.device_count()))
        self.model, self.plain = self.payload["model"].to(self.device), self.payload["optimizer"]
        vars(self.plain).update(self.payload["unpickled"])
        self.plain.load_state_dict(self.plain.state_dict())  # moves its state to its parameters' device
        self.factor = hvd.size() if spec.scale_lr else 1
        self.rates = [group["lr"] for group in self.plain.param_groups]
        self.objective = Objective(spec)
        self.step = self.payload["minibatch"] or minibatch
        ranks = hvd.rank(), hvd.size()
        self.batches = Batches(spec.train, spec.columns, spec.train_reading, *ranks)
        self.held = None
        if spec.validation is not None:
            self.held = Batches(spec.validation, spec.columns, spec.validation_reading, *ranks)
        self.progress = Progress(spec, hvd.rank(), self.batches.rows, len(self.batches))

    def run(self) -> Result | None:
        found = self.progress.begin()
        if found is not None:
            self.load(found.state)
            self.batches.load(found.data)
        for group in self.plain.param_groups:
            group["lr"] = group["lr"] * self.factor
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        given = {"compression": self.spec.compression} if self.spec.compression is not None else {}
        self.optimizer = hvd.DistributedOptimizer(
            self.plain, named_parameters=self.model.named_parameters(),
            backward_passes_per_step=self.spec.backward_passes, **given,
        )  # fmt: skip
        self._tell("on_train_begin")
        for epoch in range(self.progress.first, self.spec.epochs):
            if self._epoch(epoch):
                break
        self._tell("on_train_end")
        return self.progress.result(self.weights)

    def _epoch(self, epoch: int) -> bool:
        """Whether it was the last one."""
        seed = np.random.SeedSequence([self.spec.seed, epoch, hvd.rank()]).generate_state(1)[0]
        torch.manual_seed(int(seed))  # so that training that goes on here has the same numbers
        self.progress.begin_epoch(epoch, self.spec.backward_passes)
        self._tell("on_epoch_begin", epoch)
        training = self._train()
        average_buffers(self.model)
        validation = None if self.held is None else self._evaluate(self.held)
        logs = flat({"train": training, "validation": validation})
        self._tell("on_epoch_end", epoch, logs)
        enough = self.progress.end_epoch(epoch, training, validation, self.state, self.weights, self.batches.state())
        wish = any(getattr(each, "stop_training", False) for each in self.payload["callbacks"])
        return enough or bool(hvd.allreduce(torch.tensor(float(wish)), op=hvd.Max))

    def _train(self) -> dict[str, Any]:
        self.model.train()
        numbers, steps = Numbers(self.objective), len(self.batches)
        for step, batch in enumerate(self.batches):
            inputs, labels, weights = self._tensors(batch)
            passes = self.spec.backward_passes
            optimizer = self.optimizer if passes == 1 else Passes(self.optimizer, step, steps, passes)
            given = self.objective.for_batch(batch.share)
            with naming(self.model, self.spec.columns.features, inputs):
                outputs, loss = self.step(self.model, optimizer, self.objective.matched, given, inputs, labels, weights)
            numbers.add(batch.rows, _one(loss), outputs, labels)
        return numbers.everybody()

    def _evaluate(self, batches: Batches) -> dict[str, Any]:
        self.model.eval()
        batches.rewind()
        numbers = Numbers(self.objective)
        with torch.no_grad():
            for batch in batches:
                inputs, labels, weights = self._tensors(batch)
                with naming(self.model, self.spec.columns.features, inputs):
                    outputs = self.model(*inputs)
                outputs, labels = self.objective.matched(outputs, labels)
                loss = self.objective.for_batch(1.0)(outputs, labels, weights)
                numbers.add(batch.rows, loss, outputs, labels)
        return numbers.everybody()

    def _tell(self, event: str, *facts: Any) -> None:
        for each in self.payload["callbacks"]:
            if event == "on_train_begin":
                each.model, each.optimizer = self.model, self.optimizer
            getattr(each, event, lambda *_: None)(*facts)

    def _tensors(self, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        return tensors(batch, self.spec, self.model, self.device)

    # What is kept. Learning rates are those of one rank, so that any number can go on.

    def state(self) -> bytes:
        return self.weights()

    def weights(self) -> bytes:
        optimizer = self.plain.state_dict()
        groups = [
            {**group, "lr": rate if group["lr"] == rate * self.factor else group["lr"] / self.factor}
            for group, rate in zip(optimizer["param_groups"], self.rates, strict=True)
        ]
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": {**optimizer, "param_groups": groups}}, file)
        return file.getvalue()

    def load(self, state: bytes) -> None:
        found = torch.load(io.BytesIO(state), map_location=self.device, weights_only=False)
        self.model.load_state_dict(found["model"])
        self.plain.load_state_dict(found["optimizer"])


def minibatch(
    model: Any, optimizer: Any, transform_outputs: Any, loss_fn: Any, inputs: Any, labels: Any, sample_weights: Any
) -> tuple[Any, Any]:
    """A step. A user's ``train_minibatch_fn`` has these arguments and gives the same."""
    optimizer.zero_grad()
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


def _one(loss: Any) -> Any:
    if loss is None or torch.as_tensor(loss).numel() != 1:
        raise DataError(
            f"train_minibatch_fn gave {type(loss).__name__} as the loss of its step: it must return the outputs "
            "and the loss, one number"
        )
    return torch.as_tensor(loss).detach().reshape(())


def average_buffers(model: Any) -> None:
    """Running statistics (of BatchNorm), which each rank has of its own rows, become the mean of all ranks'."""
    own = [each for each in model.buffers() if each.is_floating_point() and each.numel()]
    if not own or hvd.size() == 1:
        return
    with torch.no_grad():
        for buffer, mean in zip(own, hvd.grouped_allreduce(own, op=hvd.Average), strict=True):
            buffer.copy_(mean)


class Passes:
    """An optimizer that steps after every k-th batch, and after the last one."""

    def __init__(self, optimizer: Any, step: int, steps: int, passes: int) -> None:
        self._optimizer = optimizer
        self._first, self._last = step % passes == 0, (step + 1) % passes == 0 or step + 1 == steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._first:
            self._optimizer.zero_grad(*args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.step(*args, **kwargs) if self._last else None


class Objective:
    """The losses of all outputs, added up."""

    def __init__(self, spec: Spec) -> None:
        payload = spec.payload
        self.losses, self.metrics = payload["losses"], payload["metrics"]
        self.labels, self.shapes = payload["labels"], payload["label_shapes"]
        self.weights = payload["loss_weights"] or [1.0] * len(self.losses)
        self.rowwise = [_rowwise(loss) for loss in self.losses] if spec.columns.weight is not None else []

    def matched(self, outputs: Any, labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Outputs and labels, both as lists, labels of the shape and type that the loss takes."""
        found = several(outputs, self.labels)
        if len(found) != len(labels):
            raise DataError(f"the model has {len(found)} outputs for {len(labels)} label columns: {self.labels}")
        if self.shapes:
            labels = [
                label if shape is None else label.reshape([len(label), *[n for n in shape if n != -1]])
                for label, shape in zip(labels, self.shapes, strict=True)
            ]
        return found, [_matched(*each) for each in zip(found, labels, self.losses, strict=True)]

    def for_batch(self, share: float) -> BatchLoss:
        return BatchLoss(self, share)


class BatchLoss:
    """``loss_fn(outputs, labels, sample_weights)``, whose gradients are times the share of this rank's rows."""

    def __init__(self, objective: Objective, share: float) -> None:
        self._objective, self._share = objective, share

    def __call__(self, outputs: Sequence[Any], labels: Sequence[Any], sample_weights: Any = None) -> Any:
        mine = self._objective
        if sample_weights is None:
            parts = [loss(*pair) for loss, *pair in zip(mine.losses, outputs, labels, strict=True)]
        else:
            parts = [
                (loss(*pair).reshape(len(sample_weights), -1).mean(1) * sample_weights).mean()
                for loss, *pair in zip(mine.rowwise, outputs, labels, strict=True)
            ]
        total = sum(part * weight for part, weight in zip(parts, mine.weights, strict=True))
        if self._share != 1 and total.requires_grad:
            total.register_hook(lambda gradient: gradient * self._share)
        return total


class Numbers:
    """Loss and metrics of an epoch, over all rows of all ranks."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._functions = [(place, function) for place, group in enumerate(objective.metrics) for function in group]
        self._sums: Any = None
        self._rows = 0

    def add(self, rows: int, loss: Any, outputs: Any, labels: Any) -> None:
        """A batch, of which ``rows`` count."""
        if not rows:
            return
        with torch.no_grad():
            outputs, labels = self._objective.matched(outputs, labels)
            values = [loss, *(function(outputs[place], labels[place]) for place, function in self._functions)]
            numbers = torch.stack([torch.as_tensor(value).detach().double().cpu() for value in values])
        self._rows += rows
        self._sums = numbers * rows if self._sums is None else self._sums + numbers * rows

    def everybody(self) -> dict[str, Any]:
        """Means over the rows of all ranks."""
        sums = torch.zeros(1 + len(self._functions)).double() if self._sums is None else self._sums
        total = hvd.allreduce(torch.cat([sums, torch.tensor([float(self._rows)]).double()]), op=hvd.Sum)
        means = (total[:-1] / total[-1]).tolist()
        found: dict[str, Any] = {"loss": means[0]}
        groups: list[list[float]] = [[] for _ in self._objective.metrics]
        for (place, function), mean in zip(self._functions, means[1:], strict=True):
            name = getattr(function, "__name__", type(function).__name__)
            found[name if len(groups) == 1 else f"{self._objective.labels[place]}_{name}"] = mean
            groups[place].append(mean)
        return {**found, "all_metrics": groups}


def losses(given: Sequence[Any]) -> list[Callable[..., Any]]:
    """Losses as functions. A name is that of a function in torch.nn.functional; SettingsError if there is none."""
    functions = torch.nn.functional
    known = [name for name in dir(functions) if "loss" in name or "entropy" in name or name == "kl_div"]
    found: list[Callable[..., Any]] = []
    for loss in given:
        if isinstance(loss, str) and loss not in known:
            near = did_you_mean(loss, known)
            raise SettingsError(f"loss={loss!r} is no loss of torch.nn.functional{near}")
        if not isinstance(loss, str) and (not callable(loss) or isinstance(loss, type)):
            raise SettingsError(f"loss={loss!r} is no function of output and label: give one, or its name")
        found.append(getattr(functions, loss) if isinstance(loss, str) else loss)
    return found


def tensors(batch: Batch, spec: Spec, model: Any, device: Any) -> tuple[list[Any], list[Any], Any]:
    """Inputs, labels and weights. Inputs are floats, but for categories."""
    whole = [name in spec.payload["categories"] for name in spec.columns.features]
    inputs = inputs_of(batch.inputs, whole, spec.payload["input_shapes"], floating(model), device)
    labels = [label_of(label, model).to(device) for label in batch.labels]
    return inputs, labels, None if batch.weight is None else tensor_of(batch.weight).to(device)


def check(spec: Spec, batch: Batch) -> list[tuple[int, ...]]:
    """Run model and loss once, with these rows; the shape of a row of each output. DataError if they do not fit."""
    model = copy.deepcopy(spec.payload["model"]).eval()
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    features = ", ".join(
        f"{name} {each.dtype}{list(each.shape[1:])}"
        for name, each in zip(spec.columns.features, batch.inputs, strict=True)
    )
    objective = Objective(spec)
    with torch.no_grad():
        try:
            inputs, labels, weights = tensors(batch, spec, model, device)
            with naming(model, spec.columns.features, inputs):
                outputs = model(*inputs)
        except DataError:  # which tells enough
            raise
        except Exception as error:  # the user's model
            raise DataError(
                f"the model cannot take the features {features}: {type(error).__name__}: {error}. input_shapes "
                "reshapes them; those in categorical_cols come as whole numbers, others as floats"
            ) from error
        found, labels = objective.matched(outputs, labels)
        shapes = [tuple(each.shape[1:]) for each in found]
        try:
            loss = objective.for_batch(1.0)(found, labels, weights)
        except Exception as error:
            told = ", ".join(
                f"{name} {label.dtype}{list(label.shape[1:])}"
                for name, label in zip(objective.labels, labels, strict=True)
            )
            raise DataError(
                f"the loss cannot take outputs of shape {shapes} and labels {told}: {type(error).__name__}: {error}"
            ) from error
    if loss.numel() != 1:
        raise DataError(f"the loss gives {tuple(loss.shape)} numbers: it must give one, the mean over the batch")
    return shapes


def _matched(output: Any, label: Any, loss: Any) -> Any:
    of_classes = isinstance(loss, _OF_CLASSES) or loss in _OF_CLASSES_TOO
    if of_classes and label.numel() == len(label) and output.numel() != label.numel():
        _tell_parts(label)
        return label.reshape(-1).long()
    turned = label.shape[:1] == output.shape[:1] and not fits(label.shape[1:], output.shape[1:])
    if label.numel() == output.numel() and output.is_floating_point() and not turned:
        return label.reshape(output.shape).to(output.dtype)
    return label


def _tell_parts(label: Any) -> None:
    """DataError for labels that are no numbers of classes: long() would cut them off without a word."""
    if label.is_floating_point() and not bool((label == label.trunc()).all()):
        wrong = label[label != label.trunc()].reshape(-1)[0].item()
        cure = "index them (StringIndexer)"
        raise DataError(f"a label is {wrong:g}, and the loss takes numbers of classes, from 0: {cure}")


def _rowwise(loss: Any) -> Any:
    """The loss, with a number for each row. SettingsError if it has no way to give them."""
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
        return loss
    try:
        parameters = inspect.signature(loss).parameters
        able = "reduction" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    except (TypeError, ValueError):  # of C
        able = True
    if not able:
        raise SettingsError(
            f"sample_weight_col needs the loss of each row: give a loss with an argument reduction, as those of torch, "
            f"instead of {getattr(loss, '__name__', loss)}"
        )
    return lambda output, label: loss(output, label, reduction="none")
