"""Keras models (Keras 3 on any backend, or tf_keras) as bytes, and as functions of arrays."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from farandole.base.pickled import dumps
from farandole.errors import DataError, SettingsError
from farandole.estimators.loaders.arrays import fits, whole_numbers
from farandole.inference.input_names import crossed, keys_of
from farandole.inference.keras_objects import own_objects, scope, scoped_objects, uncompiled

_WITH_TEXTS = ("tensorflow", "tf_keras")
_OF_TEXT = ("StringLookup", "TextVectorization", "Hashing")


class Packed(NamedTuple):
    """A model as bytes. ``content``: a .keras file. ``custom``: the pickle of custom objects.
    ``backend``: Keras 3's backend, or "tf_keras".
    """

    content: bytes
    custom: bytes
    backend: str

    def env(self) -> dict[str, str]:
        """Return environment variables for a process that opens the model."""
        if self.backend == "tf_keras":
            return {"TF_USE_LEGACY_KERAS": "1"}
        return {"KERAS_BACKEND": self.backend}

    def package(self) -> Any:
        """Return the model's Keras package."""
        if "keras" not in sys.modules and "tf_keras" not in sys.modules:
            for name, value in self.env().items():
                os.environ.setdefault(name, value)
        return importlib.import_module("tf_keras" if self.backend == "tf_keras" else "keras")

    def open(self) -> Any:
        keras = self.package()
        with tempfile.TemporaryDirectory(prefix="farandole-model-") as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(self.content)
            # add the caller's scope, which Keras would replace
            custom = {**self.objects(), **scoped_objects(keras)}
            return keras.models.load_model(
                path, custom_objects=custom, compile=False, safe_mode=False
            )

    def objects(self) -> dict[str, Any]:
        """Return the custom objects by name."""
        return dict(cloudpickle.loads(self.custom))

    def scope(self) -> Any:
        """Return a ``custom_object_scope`` of the custom objects and of the caller's own scope."""
        return scope(self.package(), self.objects())


def pack(model: Any, custom: Mapping[str, Any]) -> Packed:
    """Pack a model without its optimizer, loss and metrics, but with the custom objects that it
    needs: the user's classes and functions, ``custom``, and the objects in the caller's
    ``custom_object_scope``.

    Raises SettingsError for a model that cannot be saved.
    """
    backend = backend_of(model)
    package = "tf_keras" if backend == "tf_keras" else "keras"
    known = {**scoped_objects(sys.modules[package]), **custom}
    with tempfile.TemporaryDirectory(prefix="farandole-model-") as folder:
        path = Path(folder) / "model.keras"
        try:
            with uncompiled(model):
                model.save(path)
        except Exception as error:
            raise SettingsError(
                f"the model cannot be saved to be sent to the ranks: {error}"
            ) from error
        objects = own_objects(model, known, package, path)
        return Packed(path.read_bytes(), dumps(objects), backend)


def backend_of(model: Any) -> str:
    """Return the backend of a Keras 3 model, or "tf_keras". Raises SettingsError if ``model``
    is not a Keras model.
    """
    kinds = type(model).__mro__
    if any(kind.__module__.startswith("tf_keras.") and kind.__name__ == "Model" for kind in kinds):
        return "tf_keras"
    if any(kind.__module__.startswith("keras.") and kind.__name__ == "Model" for kind in kinds):
        return str(sys.modules["keras"].backend.backend())
    raise SettingsError(
        f"model has to be an instance of tensorflow.keras.Model, not {type(model).__name__}"
    )


class Loader(NamedTuple):
    """Opens a model and returns its prediction function. A worker calls it once."""

    packed: Packed
    names: Sequence[str]
    categories: Sequence[str]
    labels: Sequence[str] = ()

    def __call__(self) -> Callable[..., tuple[Any, ...]]:
        model = self.packed.open()

        def predict(*arrays: Any) -> tuple[Any, ...]:
            inputs = inputs_of(model, self.names, arrays, self.categories)
            outputs = output_list(model.predict_on_batch(inputs), self.labels)
            # the type of prediction columns
            return tuple(np.asarray(each).astype(np.float64) for each in outputs)

        return predict


def inputs_of(
    model: Any, names: Sequence[str], arrays: Sequence[Any], categories: Sequence[str]
) -> Any:
    """Convert arrays to the inputs that the model expects.

    Inputs are floats, except for categories and inputs declared as integers, and have the model's
    declared shapes. They are passed by name if the model's inputs have the names of the columns.
    """
    inputs = list(getattr(model, "inputs", None) or [])
    by_key = keys_of(model)
    own = _input_names(inputs, by_key) or [*by_key]
    by_name = len(names) > 1 and sorted(own) == sorted(names)
    declared: list[Any] = inputs if len(inputs) == len(names) else [None] * len(names)
    if inputs and by_name:
        declared = [inputs[own.index(name)] for name in names]
    converted = [
        _texts(array, each, name)
        if array.dtype == object or _is_text(each)
        else _input(array, each, name in categories)
        for array, each, name in zip(arrays, declared, names, strict=True)
    ]
    # only TensorFlow has string tensors, and Keras 3 rejects a mix of them and arrays
    if any(array.dtype == object for array in converted) and backend_of(model) in _WITH_TEXTS:
        converted = [sys.modules["tensorflow"].constant(each) for each in converted]
    if len(converted) == 1 and (inputs or not by_key):
        return converted[0]
    if by_key:
        # Keras sorts the keys, so their order carries no information
        if sorted(own) != sorted(names):
            raise DataError(
                f"the model's inputs are a dict of {', '.join(own)}, but the feature columns are"
                f" {', '.join(names)}. Rename the columns to the names of their inputs"
                " (withColumnRenamed), or create the model with a list of inputs"
            )
        return dict(zip(names, converted, strict=True))
    if by_name:
        return [converted[list(names).index(name)] for name in own]
    if len(own) == len(names) and crossed(names, own):
        raise DataError(
            f"the model's inputs are {', '.join(own)}, but the feature columns are"
            f" {', '.join(names)}: in this order, {crossed(names, own)!r} would be passed to the"
            " wrong input. Rename the columns to the names of their inputs (withColumnRenamed), or"
            " give the inputs names that no column has"
        )
    return converted


def text_features(model: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the features that a model takes as text: its inputs declared as strings. Without
    declared inputs, these are all features if the model has a lookup layer for text.
    """
    inputs = list(getattr(model, "inputs", None) or [])
    if not inputs:
        layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
        return tuple(names) if any(type(each).__name__ in _OF_TEXT for each in layers) else ()
    own = _input_names(inputs, keys_of(model))
    if sorted(own) == sorted(names):
        inputs = [inputs[own.index(name)] for name in names]
    if len(inputs) != len(names):
        return ()
    return tuple(name for name, each in zip(names, inputs, strict=True) if _is_text(each))


def _input_names(inputs: Sequence[Any], by_key: Mapping[str, Any]) -> list[str]:
    """Return the names of a model's inputs: their keys in a dict, otherwise their own."""
    keys = {id(each): key for key, each in by_key.items()}
    return [str(keys.get(id(each), each.name.partition(":")[0])) for each in inputs]


def _is_text(declared: Any) -> bool:
    dtype = getattr(declared, "dtype", None)
    return getattr(dtype, "name", dtype) == "string"


def _texts(array: Any, declared: Any, name: str) -> Any:
    """Return texts in the model's declared shape."""
    if array.dtype != object:
        raise DataError(
            f"the model takes column {name!r} as text, but its dtype is {array.dtype}: cast it"
            f" (df.withColumn({name!r}, F.col({name!r}).cast('string')))"
        )
    if declared is not None and len(declared.shape) == 2:
        return array.reshape(-1, 1)
    return array


def _input(array: Any, declared: Any, category: bool) -> Any:
    dtype = "int64" if category else "float32"
    if declared is not None:
        name = getattr(declared.dtype, "name", str(declared.dtype))
        whole = name != "bfloat16" and np.issubdtype(np.dtype(name), np.integer)
        dtype = name if whole or name == "float64" else dtype
        shape = tuple(declared.shape)[1:]
        if None not in shape and array.shape[1:] != shape and fits(array.shape[1:], shape):
            array = array.reshape(len(array), *shape)
    return (
        whole_numbers(array, dtype)
        if np.dtype(dtype).kind in "iu"
        else array.astype(dtype, copy=False)
    )


def output_list(outputs: Any, labels: Sequence[str] = ()) -> list[Any]:
    """Return a model's outputs as a list. Outputs in a dict are put in the order of the labels if
    they have the labels' names, because the order of a dict depends on the backend.
    """
    if isinstance(outputs, Mapping):
        named = len(outputs) > 1 and set(outputs) == set(labels)
        return [outputs[name] for name in (labels if named else outputs)]
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]
