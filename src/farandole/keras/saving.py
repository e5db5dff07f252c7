"""Loading models that continue training together."""

from __future__ import annotations

import json
import types
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from farandole.core.api.compression import NoneCompressor
from farandole.core.api.documented import documented
from farandole.job import context
from farandole.keras.optimizer import DistributedOptimizer, distributed_in
from farandole.keras.weights import lacks_variables


@documented(
    "init",
    "the errors of Keras for an unreadable file.",
    filepath="path of a file from model.save (.keras, .h5) that all ranks can read.",
    custom_optimizers="custom optimizer classes.",
    custom_objects=(
        "custom objects of the model by name, as for Keras. A function under the optimizer's name"
        " creates it from its config and may return a distributed one, whose options are kept."
    ),
    legacy_opts="has no effect; accepted for Horovod's programs.",
    options="passed on to keras.models.load_model: compile, safe_mode.",
    example="model = hvd.load_model('last.keras')\nmodel.fit(x, y)  # continues training",
)
def load_model(
    filepath: Any,
    custom_optimizers: Sequence[Any] | None = None,
    custom_objects: Any = None,
    compression: Any = NoneCompressor,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Load a model as ``keras.models.load_model`` does, with a distributed optimizer that keeps its
    state.

    Files contain the wrapped optimizer, so Keras alone loads them, too.
    """
    context.size()
    objects = {
        **{kind.__name__: kind for kind in custom_optimizers or ()},
        **(custom_objects or {}),
    }
    maker = _maker_in(objects, filepath)
    model = keras.models.load_model(filepath, custom_objects={**objects, **maker}, **options)
    if getattr(model, "optimizer", None) is not None:
        if lacks_variables(model):
            model.optimizer = _rebuilt(
                model, filepath, next(iter(maker.values()), type(model.optimizer))
            )
        if distributed_in(model.optimizer) is None:
            model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


class _Maker:
    """A function that creates an optimizer, in place of its class. Keras 3 would treat a plain
    function as the object itself.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def from_config(self, config: Mapping[str, Any]) -> Any:
        return self._make(**config)


def _maker_in(objects: Mapping[str, Any], filepath: Any) -> dict[str, _Maker]:
    """Return the function among ``objects`` that creates the file's optimizer, by its name; empty
    if there is none.
    """
    functions = {
        name: each for name, each in objects.items() if isinstance(each, types.FunctionType)
    }
    name = _optimizer_of(filepath) if functions else ""
    return {name: _Maker(functions[name])} if name in functions else {}


def _optimizer_of(filepath: Any) -> str:
    """Return the class name of the optimizer in a file; empty without an optimizer, and for a file
    that is not a model.
    """
    try:
        if zipfile.is_zipfile(filepath):
            with zipfile.ZipFile(filepath) as file:
                config = (json.loads(file.read("config.json")).get("compile_config") or {}).get(
                    "optimizer"
                )
        else:
            import h5py

            with h5py.File(filepath) as file:
                config = json.loads(file.attrs["training_config"]).get("optimizer_config")
    except (OSError, KeyError, ValueError):
        return ""  # Keras reports the error
    return str(config.get("class_name", "")) if isinstance(config, dict) else ""


def _rebuilt(model: Any, filepath: Any, kind: Any) -> Any:
    """Return the optimizer of an ``.h5`` file with its state, which Keras does not load (see
    ``lacks_variables``).
    """
    import h5py
    from keras.src.legacy.saving import legacy_h5_format

    optimizer = kind.from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(filepath) as file:
        values = legacy_h5_format.load_optimizer_weights_from_hdf5_group(file)
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value[()])
    return optimizer
