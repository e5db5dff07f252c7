"""Keras's ``fit`` on this rank's rows."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from farandole.base.log import logger
from farandole.estimators.batches import Batches, first
from farandole.estimators.loaders.keras import Packed
from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.base import Training
from farandole.estimators.trainers.keras.callbacks import given_callbacks
from farandole.estimators.trainers.keras.check import check
from farandole.estimators.trainers.keras.compiling import compile_options
from farandole.estimators.trainers.keras.epochs import losses_by_row, means_of, recording_callback
from farandole.estimators.trainers.keras.rows import Rows, indexed, with_shapes
from farandole.estimators.trainers.keras.seeds import seed_all, seed_layers
from farandole.estimators.trainers.keras.state import Rates, load, resume, saved


def train(spec: Spec) -> Result | None:
    """Train on every rank, and return the result on rank 0."""
    packed: Packed = spec.payload["model"]
    keras = packed.package()
    hvd = importlib.import_module(
        "farandole.keras.tf_keras" if packed.backend == "tf_keras" else "farandole.keras"
    )
    hvd.init()
    training = Training(spec, hvd.rank(), hvd.size())
    checkpoint = training.begin()
    first_epoch = training.progress.first
    model = _opened(keras, training)
    rates = _compile(keras, hvd, model, training)
    if checkpoint is not None:
        load(model, checkpoint.state)
    else:
        resume(model, spec.payload["slots"])
    rates.scale()
    for each in spec.payload["callbacks"]:
        if (
            spec.scale_lr
            and rates.fixed
            and isinstance(each, hvd.callbacks.LearningRateScheduleCallback)
        ):
            # as in Horovod
            each.schedule = each.schedule._replace(initial_lr=rates.given * training.factor)
    if training.rank == 0:
        batches = len(training.batches) * max(spec.epochs - first_epoch, 0)
        _warn_of_remainder(spec.backward_passes, batches)
    rows, held = Rows(training.batches, model, spec, share=True), training.held()
    means = (
        means_of(keras, rows, held)
        if packed.backend == "tf_keras"
        else hvd.callbacks.MetricAverageCallback()
    )
    if first_epoch < spec.epochs:
        with given_callbacks(keras, spec, training.rank) as own:
            # Keras does not count rows there
            graph = packed.backend != "tf_keras" and keras.backend.backend() == "tensorflow"
            by_batch = graph and len(spec.columns.labels) > 1
            uneven = training.size > 1 and rows.batches.uneven
            losses = [losses_by_row(keras, rows, held, by_batch)] if uneven or by_batch else []
            callbacks = [
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                means,
                *losses,
                *own,
                recording_callback(keras, training, rows, rates),
            ]
            _fit(model, rows, spec, first_epoch, callbacks, held)
    rates.restore()
    return training.progress.result(lambda: saved(model, rates))


def _opened(keras: Any, training: Training) -> Any:
    """Return the model, with this rank's own random seeds."""
    spec = training.spec
    numbers = np.random.default_rng([spec.seed, training.progress.first, training.rank])
    seed_all(keras, int(numbers.integers(2**31)))
    model = spec.payload["model"].open()
    seed_layers(model, numbers)
    if "heads" not in spec.payload:  # the driver could not read any rows
        check(spec, first(spec.train, spec.columns), model)
    return model


def _compile(keras: Any, hvd: Any, model: Any, training: Training) -> Rates:
    """Compile the model with an optimizer that averages gradients, and return its learning
    rates.
    """
    spec = training.spec
    with spec.payload["model"].scope():
        options = compile_options(keras, spec.payload)
        rates = Rates(options["optimizer"], training.factor)
        options["optimizer"] = hvd.DistributedOptimizer(
            options["optimizer"],
            backward_passes_per_step=spec.backward_passes,
            average_aggregated_gradients=True,
            **training.compression(),
        )
        model.compile(**options)
    return rates


def _fit(
    model: Any, rows: Rows, spec: Spec, first: int, callbacks: list[Any], held: Batches | None
) -> None:
    options: dict[str, Any] = {}
    packed = spec.payload["model"]
    shaped = packed.backend == "tf_keras" and bool(spec.columns.texts)
    if held is not None:
        own = Rows(held, model, spec, share=False)
        options["validation_data"] = (
            with_shapes(lambda: map(own.at, range(len(held))))
            if shaped
            else indexed(packed.package(), own)
        )
    with rows.endless() as batches:
        model.fit(
            with_shapes(lambda: batches) if shaped else batches,
            steps_per_epoch=len(rows.batches),
            initial_epoch=first,
            epochs=spec.epochs,
            callbacks=callbacks,
            # rows are already shuffled, and Keras would warn that it cannot shuffle
            verbose=0,
            shuffle=False,
            **options,
        )


def _warn_of_remainder(passes: int, batches: int) -> None:
    if batches % passes:
        logger.warning(
            "backward_passes_per_step=%s does not divide the %s batches of this training, so the"
            " gradients of the last %s are not used. Choose train_steps_per_epoch, epochs or"
            " backward_passes_per_step accordingly",
            passes,
            batches,
            batches % passes,
        )
