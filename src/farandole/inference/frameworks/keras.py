"""Keras 3 on any backend, and Keras 2 (tf_keras)."""

from __future__ import annotations

import importlib
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from farandole.base.pickled import dumps
from farandole.errors import SettingsError
from farandole.inference.frameworks import module_of
from farandole.inference.input_names import keys_of, named
from farandole.inference.keras_objects import own_objects, scoped_objects, uncompiled
from farandole.inference.models import Execution, Model
from farandole.inference.returns import of

if TYPE_CHECKING:
    from farandole.base.types import Array


class KerasPredictor:
    """A predictor that calls ``predict_on_batch``.

    Columns become the model's inputs: by name if the names match, otherwise in order. The inputs of
    a model that takes a dict are unordered.
    """

    floating: str | None = None  # Keras itself casts

    def __init__(self, model: Any) -> None:
        self._model = model
        self._keys = [*keys_of(model)]
        self._names = [_name(each) for each in getattr(model, "inputs", None) or ()]

    def __call__(self, inputs: dict[str, Array]) -> Any:
        return _arrays(self._model.predict_on_batch(self._given(inputs)))

    def _given(self, inputs: dict[str, Array]) -> Any:
        if self._keys and (len(inputs) > 1 or not self._names):
            return named(inputs, self._keys, "the Keras model", ordered=False)
        if len(inputs) == 1:
            return next(iter(inputs.values()))
        if len(inputs) == len(self._names):
            inputs = named(inputs, self._names, "the Keras model", ordered=True)
        return [*inputs.values()]


def pack(model: Any, folder: Path, options: Mapping[str, Any]) -> Model:
    """Save the model in its own file format, together with the user's layer classes."""
    path = folder / "model.keras"
    if not getattr(model, "built", True):
        raise SettingsError(
            f"the Keras model {model.name!r} has no weights yet, so each process would initialize"
            " different ones. Train it, load its weights, or call it once"
        )
    with uncompiled(model):
        model.save(path)
    backend = _backend(model)
    package = "tf_keras" if backend == "tf_keras" else "keras"
    custom = own_objects(model, _unpickled(options), package, path)
    sent = {**options, "backend": backend, "trust_pickle": True}  # this program has made the file
    if custom:
        sent["custom_objects"] = dumps(custom)
    return Model.of_file("keras", path, sent, _returns(model))


def load(path: str, options: Mapping[str, Any], execution: Execution) -> KerasPredictor:
    """Open a model. Keras's safe mode refuses files with functions to run, unless ``trust_pickle``
    is set.
    """
    keras = _keras(path, str(options.get("backend", "")), execution)
    if not options.get("trust_pickle") and not zipfile.is_zipfile(path) and not _safe_hdf5(keras):
        raise SettingsError(
            f"{path} is not a .keras file, and Keras {keras.__version__} runs functions in other"
            " files (Lambda layers). If you trust its author, use trust_pickle=True"
            " (--trust-pickle). Otherwise save it as .keras, or upgrade to Keras 3.11"
        )
    model = keras.models.load_model(
        path,
        # Keras would replace the caller's scope
        custom_objects={**_unpickled(options), **scoped_objects(keras)},
        compile=False,
        safe_mode=not options.get("trust_pickle"),
    )
    return KerasPredictor(model)


def _safe_hdf5(keras: Any) -> bool:
    """Return whether ``safe_mode`` applies to HDF5 files, too."""
    major, minor = (int(part) for part in keras.__version__.split(".")[:2])
    return (major, minor) >= (3, 11)


def wrap(model: Any, options: Mapping[str, Any], execution: Execution) -> KerasPredictor:
    return KerasPredictor(model)


def _unpickled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's classes and functions in the model."""
    return dict(cloudpickle.loads(options["custom_objects"])) if "custom_objects" in options else {}


def _keras(path: str, backend: str, execution: Execution) -> Any:
    """Return the Keras package that wrote the file, on its backend, unless this process runs
    another backend.
    """
    package = "tf_keras" if backend == "tf_keras" or _version(path).startswith("2.") else "keras"
    if package == "keras" and backend and "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = backend
    if execution.device.startswith("cuda"):
        number = execution.device.partition(":")[2] or "0"
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", number)
    keras = importlib.import_module(package)
    used = "tensorflow" if package == "tf_keras" else keras.backend.backend()
    if used in ("tensorflow", "torch"):
        module_of(used).fit(execution)
    return keras


def _version(path: str) -> str:
    if not zipfile.is_zipfile(path):
        return ""
    with zipfile.ZipFile(path) as archive:
        return str(json.loads(archive.read("metadata.json")).get("keras_version", ""))


def _backend(model: Any) -> str:
    if any(base.__module__.startswith("tf_keras") for base in type(model).__mro__):
        return "tf_keras"
    return str(importlib.import_module("keras").backend.backend())


def _returns(model: Any) -> str:
    outputs = getattr(model, "outputs", None)
    if not outputs:
        return ""
    kinds = [of(tuple(each.shape)[1:], _dtype(each)) for each in outputs]
    if len(kinds) == 1:
        return str(kinds[0])
    names = getattr(model, "output_names", None) or [
        f"output_{number}" for number in range(len(kinds))
    ]
    return (
        f"struct<{','.join(f'`{name}`:{kind}' for name, kind in zip(names, kinds, strict=True))}>"
    )


def _dtype(output: Any) -> Any:
    name = getattr(output.dtype, "name", str(output.dtype))
    return np.dtype("float32") if name in ("bfloat16", "float16") else np.dtype(name)


def _name(tensor: Any) -> str:
    return str(tensor.name).partition(":")[0]


def _arrays(output: Any) -> Any:
    if isinstance(output, Mapping):
        return {name: _arrays(each) for name, each in output.items()}
    if isinstance(output, (list, tuple)):
        return tuple(_arrays(each) for each in output)
    array = np.asarray(output)
    return array if array.dtype.kind in "biufSUO" else array.astype(np.float32)  # bfloat16
