"""Loading models so that they go on training together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from farandole import context
from farandole.frontend.compression import NoneCompressor
from farandole.frontend.documented import documented
from farandole.keras.optimizer import DistributedOptimizer
from farandole.keras.weights import lacks_variables


@documented(
    "init",
    "What Keras raises for the file.",
    filepath="a file of model.save (.keras, .h5) that all ranks can read.",
    custom_optimizers="optimizer classes of your own.",
    custom_objects="by name, what else the model is made of: as for Keras.",
    legacy_opts="has no effect; Horovod's programs give it.",
    options="those of keras.models.load_model: compile, safe_mode.",
    example="model = hvd.load_model('last.keras')\nmodel.fit(x, y)  # goes on",
)
def load_model(
    filepath: Any, custom_optimizers: Sequence[Any] | None = None, custom_objects: Any = None,
    compression: Any = NoneCompressor, legacy_opts: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """``keras.models.load_model``, with the model's optimizer distributed, and its state kept.

    Files hold the optimizer that was wrapped, so Keras alone loads them, too.
    """
    context.size()
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})}, **options)
    if getattr(model, "optimizer", None) is not None:
        optimizer = _rebuilt(model, filepath) if lacks_variables(model) else model.optimizer
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model


def _rebuilt(model: Any, filepath: Any) -> Any:
    """The optimizer of an ``.h5`` file, with its state: Keras loads it without (see ``lacks_variables``)."""
    import h5py
    from keras.src.legacy.saving import legacy_h5_format

    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(filepath) as file:
        values = legacy_h5_format.load_optimizer_weights_from_hdf5_group(file)
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value[()])
    return optimizer
