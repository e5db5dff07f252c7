"""Loading Keras 2 models that continue training together."""

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
    """Load a model as ``tf_keras.models.load_model`` does, with a distributed optimizer that keeps
    its state.

    Files contain the wrapped optimizer, so Keras alone loads them, too. ``custom_optimizers``:
    custom optimizer classes. ``custom_objects`` may make distributed optimizers, whose options are
    kept. ``options`` go to Keras. ``filepath``: an .h5 or .keras file, or the folder of a
    SavedModel. ``legacy_opts``: accepted for compatibility with Horovod; the file shows whether it
    has old optimizers.
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
    """Restore the optimizer's state from a SavedModel where Keras does not, and warn if the file
    has none.
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
            f"{filepath} has no optimizer state, so the optimizer restarts: Keras 2 does not write"
            f" the state of an old optimizer (optimizers.legacy.{type(inner).__name__}) into"
            " .keras files. Save to an .h5 file or a SavedModel",
            where=f"{filepath}",
        )
        warn_once(finding)
