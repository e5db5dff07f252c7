"""Loading models of Keras 2 so that they go on training together."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from farandole.checks.catalogue import OPTIMIZER_STATE_MISSING
from farandole.checks.reporting import warn_once
from farandole.core.api.compression import NoneCompressor
from farandole.job import context
from farandole.keras.tf_keras.optimizer import DistributedOptimizer, state_of
from farandole.keras.tf_keras.slots import make_slots


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[Any] | None = None,
    custom_objects: Any = None,
    compression: Any = NoneCompressor,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """``tf_keras.models.load_model``, with the model's optimizer distributed, and its state kept.

    Files hold the optimizer that was wrapped, so Keras alone loads them, too.
    ``custom_optimizers``: optimizer classes of your own. ``custom_objects`` may make distributed
    ones, whose options count. ``options`` go to Keras. ``filepath``: an .h5 or .keras file, or the
    folder of a SavedModel. ``legacy_opts``, Horovod's word for what the file holds old optimizers,
    is not needed: the file tells.
    """
    context.size()
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = tf_keras.models.load_model(
        filepath, custom_objects={**objects, **(custom_objects or {})}, **options
    )
    if getattr(model, "optimizer", None) is not None:
        _restore(model, filepath)
        if state_of(model.optimizer) is None:
            model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


def _restore(model: Any, filepath: Any) -> None:
    """Give the optimizer its state, where Keras leaves it out though the SavedModel has it. Say so
    where the file has none.
    """
    if not isinstance(filepath, (str, os.PathLike)):  # an h5py.File
        return
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if tf.io.gfile.isdir(filepath):
        make_slots(model.optimizer, model.trainable_variables)
        tf.train.Checkpoint(root=model).read(
            os.path.join(filepath, "variables", "variables")
        ).expect_partial()
        return
    old = isinstance(inner, tf_keras.optimizers.legacy.Optimizer)
    if old and zipfile.is_zipfile(filepath) and context.rank() == 0:
        finding = OPTIMIZER_STATE_MISSING.finding(
            f"{filepath} has no state of its optimizer, which begins anew: Keras 2 writes that of"
            f" an old optimizer (optimizers.legacy.{type(inner).__name__}) into .h5 files and"
            " SavedModels, but not into .keras files",
            where=f"{filepath}",
        )
        warn_once(finding)
