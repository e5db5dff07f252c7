"""The user's classes and functions in Keras objects, whose configurations contain only names."""

from __future__ import annotations

import contextlib
import importlib
import types
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farandole.errors import SettingsError

_KERAS = ("keras", "tf_keras")
_LAMBDA = "<lambda>"
# attributes of a compiled model that are not in its configuration
_COMPILED = frozenset(
    {
        "optimizer",
        "_optimizer",
        "loss",
        "compiled_loss",
        "compiled_metrics",
        "_compile_config",
        "_compile_loss",
        "_compile_metrics",
    }
)
_CURE = (
    "rename it, or pass a function without arguments that creates the model and loads its weights"
)


def is_own(value: Any) -> bool:
    """Return whether a class or function is defined outside of Keras."""
    return (getattr(value, "__module__", None) or "").split(".")[0] not in _KERAS


def is_configurable(value: Any) -> bool:
    """Return whether ``value`` is a Keras object with a configuration."""
    return hasattr(value, "get_config") and not isinstance(value, type)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Keras objects and functions in ``value``, each once with the name of the attribute
    that holds it: ``value`` itself, and the contents of attributes, lists and dicts.
    """
    seen: dict[int, Any] = {}  # keeps temporary objects alive, and so their ids unique
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        name, each = left.pop()
        if isinstance(each, str | bytes | int | float | None) or id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, list | tuple):
            left += [(name, part) for part in each]
        elif isinstance(each, Mapping):
            left += [(name, part) for part in each.values()]
        elif isinstance(each, types.FunctionType):
            yield name, each
        elif is_configurable(each):
            yield name, each
            left += _attributes(each)
            if hasattr(each, "_flatten_layers"):
                left += [(name, layer) for layer in each._flatten_layers()]


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    """Return the attributes that may be parts of an object's configuration: not the arguments of
    ``compile``, nor wrappers of its own methods (Keras 3 wraps ``build``), which hold the object
    itself.
    """
    return [
        (name, value)
        for name, value in getattr(owner, "__dict__", {}).items()
        if name not in _COMPILED
        and getattr(getattr(value, "__wrapped__", None), "__self__", None) is not owner
    ]


@contextlib.contextmanager
def uncompiled(model: Any) -> Iterator[None]:
    """Omit the arguments of ``compile`` from the model's file, because predictions do not need
    them.
    """
    held, name = vars(model), "_compile_config"
    config = held.pop(name, None)
    try:
        yield
    finally:
        if config is not None:
            held[name] = config


def names_of(keras: Any, value: Any) -> list[str]:
    """Return the names of a class or function in configurations: its own, and its
    ``register_keras_serializable`` name.
    """
    return list(dict.fromkeys([value.__name__, keras.saving.get_registered_name(value)]))


def own_objects(model: Any, known: Mapping[str, Any], package: str, path: Path) -> dict[str, Any]:
    """Return the user's classes and functions (layers, activations, initializers ...) in a model by
    name, together with the ``known`` ones.

    ``path``: the model's file. Raises SettingsError for a name in it that is ambiguous.
    """
    keras = importlib.import_module(package)
    text = _config_of(path)
    custom: dict[str, Any] = {}
    for attribute, part in parts_of(model):
        each = part if isinstance(part, types.FunctionType) else type(part)
        name = each.__name__
        if not is_own(each) or name == _LAMBDA:  # the file contains the code of lambdas
            continue
        for registered in names_of(keras, each):
            same = custom.setdefault(registered, each) is each
            if not same and registered not in known and f'"{registered}"' in text:
                raise SettingsError(
                    f"the Keras model has two different functions or classes named {registered!r}."
                    f" To fix this, {_CURE}"
                )
        activates = "activation" in attribute and isinstance(part, types.FunctionType)
        if activates and not _is_known_as(name, each, keras):
            raise SettingsError(
                f"the Keras model has an activation {name!r} that is not Keras's own {name!r}. To"
                f" fix this, {_CURE}"
            )
    return {**custom, **known}


def scoped_objects(keras: Any) -> dict[str, Any]:
    """Return the objects of the ``custom_object_scope`` in which the caller runs."""
    scope = keras.saving.custom_object_scope({})
    with scope:
        return dict(scope.backup)


def scope(keras: Any, custom: Mapping[str, Any]) -> Any:
    """Return a ``custom_object_scope`` of ``custom`` and of the caller's own scope, which Keras 3
    would replace. The caller's objects take precedence.
    """
    return keras.saving.custom_object_scope({**custom, **scoped_objects(keras)})


def _config_of(path: Path) -> str:
    if not zipfile.is_zipfile(path):
        return ""
    with zipfile.ZipFile(path) as archive:
        return archive.read("config.json").decode()


def _is_known_as(name: str, function: Any, keras: Any) -> bool:
    """Return whether an activation equals Keras's own of that name, or Keras has none. Keras
    prefers its own when it opens a file.

    TensorFlow's functions (tf.nn.relu) are different objects with the same results.
    """
    try:
        own = keras.activations.get(name)
    except ValueError:
        return True
    make = importlib.import_module(
        "tensorflow" if keras.__name__ == "tf_keras" else "keras.ops"
    ).convert_to_tensor
    numbers = make(np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 12))
    try:
        output = function(numbers)
    except Exception:  # it takes other arguments
        return True
    return own is function or np.allclose(
        _number_array(output), _number_array(own(numbers)), atol=1e-4
    )


def _number_array(value: Any) -> Any:
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)
