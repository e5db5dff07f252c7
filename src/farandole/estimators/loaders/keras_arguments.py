"""Arguments of Keras's ``compile`` as bytes that any process can open."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import cloudpickle

from farandole.base.pickled import dumps
from farandole.errors import SettingsError
from farandole.inference.keras_objects import is_configurable, is_own, names_of, parts_of, scope

NAMES = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
_PLAIN = (bool, int, float, str, tuple, type(None))


class Configured(NamedTuple):
    """A Keras object: its configuration, and the user's classes and functions in it, by name."""

    config: Any
    custom: dict[str, Any]


class Stateful(NamedTuple):
    """A loss whose configuration does not restore it: its class and its attributes."""

    kind: Any
    attributes: dict[str, Any]


def pack_arguments(
    keras: Any, arguments: Mapping[str, Any], known: Mapping[str, Any] | None = None
) -> bytes:
    """Pack arguments of ``compile``: Keras objects as their configurations, functions and classes
    as pickles. ``known``: the custom objects that the arguments may name.

    Raises SettingsError for an object that another process could not restore.
    """
    packed = {name: _packed(keras, name, value, known or {}) for name, value in arguments.items()}
    for name, value in packed.items():
        try:
            dumps(value)
        except Exception as error:
            raise SettingsError(
                f"{name}={arguments[name]!r:.200} cannot be sent to the ranks or saved"
                f" ({type(error).__name__}: {error}): locks, files and sessions cannot be pickled."
                " Create them inside the function"
            ) from error
    return dumps(packed)


def open_arguments(keras: Any, packed: bytes) -> dict[str, Any]:
    """Return the arguments of ``pack_arguments``."""
    return {name: _opened(keras, name, value) for name, value in cloudpickle.loads(packed).items()}


def compiled_arguments(model: Any) -> dict[str, Any]:
    """Return the arguments with which a model was compiled; empty if it is not compiled."""
    if not getattr(model, "optimizer", None):
        return {}
    held = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    given = {name: held[name] for name in NAMES if held.get(name) is not None}
    if not is_configurable(given.get("optimizer")):  # a name, without the settings
        given["optimizer"] = model.optimizer
    return given


def _packed(keras: Any, name: str, value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _packed(keras, name, each, known) for key, each in value.items()}
    # as lists, because a Configured is a tuple
    if isinstance(value, list | tuple):
        return [_packed(keras, name, each, known) for each in value]
    if isinstance(value, str):  # Keras 3 does not look up losses and metrics in a scope
        value = known.get(value, value)
    return _configured(keras, name, value) if is_configurable(value) else value


def _opened(keras: Any, name: str, value: Any) -> Any:
    if isinstance(value, Configured):
        with scope(keras, value.custom):
            if keras.__name__ == "tf_keras" and name == "optimizer":  # also legacy ones
                return keras.optimizers.deserialize(value.config)
            return keras.saving.deserialize_keras_object(value.config, safe_mode=False)
    if isinstance(value, Stateful):
        made = value.kind.__new__(value.kind)
        vars(made).update(value.attributes)
        return made
    if isinstance(value, dict):
        return {key: _opened(keras, name, each) for key, each in value.items()}
    return [_opened(keras, name, each) for each in value] if isinstance(value, list) else value


def _configured(keras: Any, name: str, value: Any) -> Configured | Stateful:
    """Pack a Keras object. If it has custom parts, verify that its configuration restores it."""
    parts = [part for _, part in parts_of(value)]
    functions = [part for part in parts if isinstance(part, types.FunctionType) and is_own(part)]
    custom: dict[str, Any] = {}
    for part in parts:
        each = part if isinstance(part, types.FunctionType) else type(part)
        if is_own(each):
            custom.update(dict.fromkeys(names_of(keras, each), each))
    try:
        with _uniquely_named(functions) as named:
            custom.update(named)
            config = (
                keras.optimizers.serialize(value)
                if name == "optimizer"
                else keras.saving.serialize_keras_object(value)
            )
        packed = Configured(config, custom)
        if custom:
            _check_same(value, _opened(keras, name, packed))
        return packed
    except Exception as error:
        if isinstance(value, keras.losses.Loss):  # it has no variables
            return Stateful(type(value), dict(vars(value)))
        raise SettingsError(
            f"{name}: {type(value).__name__} cannot be restored from its configuration"
            f" ({type(error).__name__}: {error}), so it cannot be sent to the ranks or saved. Let"
            f" {type(value).__name__}.get_config() return all arguments of its constructor"
        ) from error


@contextlib.contextmanager
def _uniquely_named(functions: list[Any]) -> Iterator[dict[str, Any]]:
    """Give functions unique names within the context, and yield them by these names: a
    configuration contains only a function's name, or a lambda's code without its variables.
    """
    names = [each.__name__ for each in functions]
    named = {f"farandole_function_{index}": each for index, each in enumerate(functions)}
    for name, each in named.items():
        each.__name__ = name
    try:
        yield named
    finally:
        for name, each in zip(names, functions, strict=True):
            each.__name__ = name


def _check_same(value: Any, restored: Any) -> None:
    """Raise ValueError unless the restored object has the class of ``value``, and plain attributes
    named as arguments of its constructor are equal.
    """
    if type(restored) is not type(value):
        raise ValueError(f"it becomes a {type(restored).__name__}")
    held, found = vars(value), vars(restored)
    for name in inspect.signature(type(value).__init__).parameters:
        for attribute in (name, f"_{name}"):
            if not isinstance(held.get(attribute), _PLAIN) or attribute in ("name", "_name"):
                continue
            if held.get(attribute) != found.get(attribute):
                raise ValueError(
                    f"{attribute}={held.get(attribute)!r} becomes {found.get(attribute)!r}"
                )
