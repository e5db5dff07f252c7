"""Epochs of a PyTorch model on this rank's rows."""

from __future__ import annotations

from typing import Any

import torch

import farandole.torch as hvd
from farandole.errors import SettingsError
from farandole.estimators.batches import Batch, Batches
from farandole.estimators.loaders.torch import naming
from farandole.estimators.progress import flat
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.base import Training, sum_over_ranks
from farandole.estimators.trainers.torch.losses import Objective
from farandole.estimators.trainers.torch.numbers import Numbers
from farandole.estimators.trainers.torch.state import average_buffers, opened, packed
from farandole.estimators.trainers.torch.step import Passes, minibatch, one_number
from farandole.estimators.trainers.torch.tensors import device_of_rank, tensors


def train(spec: Spec) -> Result | None:
    """Train on every rank, and return the result on rank 0."""
    hvd.init()
    training = TorchTraining(spec)
    with torch.random.fork_rng(devices=[]):
        return training.run()


class TorchTraining(Training):
    """A rank's model, and the state of its epochs."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec, hvd.rank(), hvd.size())
        self.payload = spec.payload
        self.device = device_of_rank(spec.use_gpu)
        self.model = self.payload["model"].to(self.device)
        self.plain = self.payload["optimizer"]
        vars(self.plain).update(self.payload["unpickled"])
        # moves its state to its parameters' device
        self.plain.load_state_dict(self.plain.state_dict())
        self.rates = [group["lr"] for group in self.plain.param_groups]
        self.objective = Objective(spec, sum_over_ranks, self.size)
        self.step = self.payload["minibatch"] or minibatch
        self.validation = self.held()

    def run(self) -> Result | None:
        checkpoint = self.begin()
        if checkpoint is not None:
            self.load(checkpoint.state)
        for group in self.plain.param_groups:
            group["lr"] = group["lr"] * self.factor
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(
            self.plain,
            named_parameters=self.model.named_parameters(),
            backward_passes_per_step=self.spec.backward_passes,
            **self.compression(),
        )
        self._call_callbacks("on_train_begin")
        for epoch in range(self.progress.first, self.spec.epochs):
            if self._epoch(epoch):
                break
        self._call_callbacks("on_train_end")
        return self.progress.result(self.weights)

    def _epoch(self, epoch: int) -> bool:
        """Train an epoch, and return whether it was the last one."""
        torch.manual_seed(self.seed(epoch))
        self.progress.begin_epoch(epoch, self.spec.backward_passes)
        self._call_callbacks("on_epoch_begin", epoch)
        training = self._train()
        average_buffers(self.model)
        validation = None if self.validation is None else self._evaluate(self.validation)
        logs = flat({"train": training, "validation": validation})
        self._call_callbacks("on_epoch_end", epoch, logs)
        enough = self.progress.end_epoch(
            epoch, training, validation, self.weights, self.weights, self.batches.state()
        )
        wish = any(getattr(each, "stop_training", False) for each in self.payload["callbacks"])
        return enough or bool(hvd.allreduce(torch.tensor(float(wish)), op=hvd.Max))

    def _train(self) -> dict[str, Any]:
        self.model.train()
        numbers, steps = Numbers(self.objective), len(self.batches)
        for step, batch in enumerate(self.batches):
            inputs, labels, weights = self._tensors(batch)
            passes = self.spec.backward_passes
            optimizer = (
                self.optimizer if passes == 1 else Passes(self.optimizer, step, steps, passes)
            )
            batch_loss = self.objective.for_batch(batch.share)
            with naming(self.model, self.spec.columns.features, inputs):
                outputs, loss = self.step(
                    self.model,
                    optimizer,
                    self.objective.matched,
                    batch_loss,
                    inputs,
                    labels,
                    weights,
                )
            numbers.add(batch.rows, one_number(loss), outputs, labels)
        return numbers.means_over_ranks()

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
                loss = self.objective.for_batch(batch.share)(outputs, labels, weights)
                numbers.add(batch.rows, loss, outputs, labels)
        return numbers.means_over_ranks()

    def _call_callbacks(self, event: str, *facts: Any) -> None:
        for each in self.payload["callbacks"]:
            if event == "on_train_begin":
                each.model = self.model
                each.optimizer = self.optimizer
            getattr(each, event, lambda *_: None)(*facts)

    def _tensors(self, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        return tensors(batch, self.spec, self.model, self.device)

    # The saved state. Learning rates are one rank's, so that any number of ranks can resume.

    def weights(self) -> bytes:
        optimizer = self.plain.state_dict()
        now, first = len(optimizer["param_groups"]), len(self.rates)
        if now != first:
            raise SettingsError(
                f"the optimizer has {now} parameter groups, but had {first} when training began,"
                " and the returned model and resumed runs expect that number. Pass it all"
                " parameters, and let callbacks freeze and unfreeze them with requires_grad_()"
            )
        groups = [
            {
                **group,
                "lr": rate if group["lr"] == rate * self.factor else group["lr"] / self.factor,
            }
            for group, rate in zip(optimizer["param_groups"], self.rates, strict=True)
        ]
        return packed(
            {"model": self.model.state_dict(), "optimizer": {**optimizer, "param_groups": groups}}
        )

    def load(self, state: bytes) -> None:
        unpacked = opened(state, self.device)
        self.model.load_state_dict(unpacked["model"])
        self.plain.load_state_dict(unpacked["optimizer"])
