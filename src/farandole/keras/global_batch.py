"""``model.fit`` with a fixed global batch (``--fixed-global-batch``).

The global batch consists of shares of ``batch_size`` rows. A rank computes its shares as one batch,
and its gradients are weighted by their number, so that the sum over the ranks is the gradient of
the mean loss over the global batch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from farandole.errors import SettingsError
from farandole.job import context
from farandole.keras.optimizer import reducers_of
from farandole.strategies.shares import Shares
from farandole.strategies.shares.guarantee import report

_MEANS = ("sum_over_batch_size", "mean")


@contextmanager
def weighing(model: Any) -> Iterator[None]:
    """Mark a call of ``fit``. At its end, the optimizers of ``model`` reset their weights."""
    try:
        yield
    finally:
        for _, reducer in reducers_of(model):
            if reducer.share_weight is not None:
                reducer.share_weight.clear()


def weigh(model: Any, shares: Shares) -> None:
    """Weight the gradients of a rank with these ``shares``, in a job with a fixed global batch.

    The weight is a constant of the compiled training step, which is recompiled if it changes.
    """
    for _, reducer in reducers_of(model):
        if reducer.share_weight is not None and reducer.share_weight.set(shares):
            model.train_function = None
    if context.shares():
        _report(shares.total)


def check_weighed(model: Any) -> None:
    """Raise SettingsError outside of ``fit`` in a job with a fixed global batch. A training step
    that was compiled within ``fit`` would weight other batches in the same way.
    """
    for _, reducer in reducers_of(model):
        if reducer.share_weight is not None and reducer.shared():
            reducer.share_weight.value()


@functools.cache  # logged once
def _report(total: int) -> None:
    report(total, "" if total == 1 else "each rank computes its shares as one batch")


def check_fit(model: Any, arguments: Mapping[str, Any], divided: bool) -> None:
    """Raise SettingsError for a ``fit`` whose result depends on the number of ranks.

    ``model``: built. ``arguments``: of ``fit``, by name. ``divided``: whether ``fit`` divides
    the data among the ranks.
    """
    for found, cure in (
        *_of_data(arguments, divided),
        *_of_optimizers(model),
        *_of_losses(model),
        *_of_layers(model),
    ):
        raise SettingsError(f"{found}, which is incompatible with --fixed-global-batch: {cure}")


def _of_data(arguments: Mapping[str, Any], divided: bool) -> Iterator[tuple[str, str]]:
    data = arguments.get("x")
    if not divided:
        yield (
            "the program divides the data among the ranks",
            "pass the whole data on all ranks, with hvd.DistributedOptimizer(..., shard=True)",
        )
    if getattr(data, "sharded", False):
        yield f"{type(data).__name__} divides the data among the ranks", "pass the whole data"


def _of_optimizers(model: Any) -> Iterator[tuple[str, str]]:
    for optimizer, reducer in reducers_of(model):
        passes = getattr(optimizer, "gradient_accumulation_steps", None)
        if passes:
            yield (
                f"the optimizer has gradient_accumulation_steps={passes}",
                "use a larger --max-np or batch_size",
            )
        if reducer.local():
            yield "the optimizer has local variables", "remove register_local_var and local_layers"


def _of_losses(model: Any) -> Iterator[tuple[str, str]]:
    losses = getattr(getattr(model, "_compile_loss", None), "_user_loss", None)
    for loss in keras.tree.flatten(losses):
        reduction = getattr(loss, "reduction", _MEANS[0])
        if reduction not in _MEANS:
            yield (
                f"the loss {type(loss).__name__} has reduction={reduction!r}",
                f"use reduction={_MEANS[0]!r}",
            )
    for output in getattr(model, "outputs", None) or ():
        if getattr(output, "_keras_mask", None) is not None:
            yield (
                f"the output {output.name!r} has a mask, and the loss is a mean over the positions"
                " that a rank's rows leave",
                "weight the positions with sample_weight, and remove the mask",
            )


def _of_layers(model: Any) -> Iterator[tuple[str, str]]:
    for layer in model._flatten_layers():
        if hasattr(layer, "_process_set"):  # Farandole's own layer
            yield (
                f"{layer.name!r} normalizes over the batches of all ranks",
                "use BatchNormalization",
            )
