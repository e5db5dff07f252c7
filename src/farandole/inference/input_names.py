"""Assignment of columns to a model's named and typed inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.data.parquet import numeric_cast
from farandole.errors import DataError, SettingsError, counted
from farandole.inference.isolate import BatchError

if TYPE_CHECKING:
    from farandole.base.types import Array


def named(
    columns: Mapping[str, Array], names: Sequence[str], what: str, ordered: bool
) -> dict[str, Array]:
    """Return ``columns`` by the model's ``names``: by their own names if these match, otherwise in
    order.

    ``ordered``: whether the inputs are ordered; several unordered inputs must have the columns'
    names. Raises BatchError if they do not, or if a column would be passed to an input with the
    name of another column.
    """
    if len(columns) != len(names):
        raise BatchError(
            SettingsError(
                f"{what} takes {', '.join(names)}, but received {counted(len(columns), 'column')}"
            )
        )
    if set(columns) == set(names):
        return {name: columns[name] for name in names}
    if len(names) > 1 and not ordered:
        raise BatchError(
            SettingsError(
                f"{what} takes {', '.join(names)} by name, but the columns are"
                f" {', '.join(columns)}. Pass columns with the names of the inputs, with inputs="
            )
        )
    if crossed([*columns], names):
        raise BatchError(
            SettingsError(
                f"{what} takes {', '.join(names)}, but the columns are {', '.join(columns)}: in"
                f" this order, {crossed([*columns], names)!r} would be passed to the wrong input."
                " Pass columns with the names of the inputs, with inputs="
            )
        )
    return dict(zip(names, columns.values(), strict=True))


def crossed(given: Sequence[str], names: Sequence[str]) -> str:
    """Return a name that both have at different positions, which makes matching by order a mistake;
    "" if there is none.
    """
    return next(
        (one for one, other in zip(given, names, strict=True) if one != other and one in names), ""
    )


def keys_of(model: Any) -> dict[str, Any]:
    """Return the input names of a Keras model whose inputs are a dict: Keras uses its keys,
    regardless of the names of the Input layers.

    None: inputs that only a call determines.
    """
    # Keras 3 and Keras 2
    structures = (getattr(model, name, None) for name in ("_inputs_struct", "_nested_inputs"))
    declared = next((each for each in structures if isinstance(each, dict)), {})
    if declared or getattr(model, "inputs", None) or not hasattr(model, "get_build_config"):
        return declared
    called = (model.get_build_config() or {}).get("input_shape")
    return dict.fromkeys(called) if isinstance(called, Mapping) else {}


def cast(name: str, array: Array, dtype: Any) -> Array:
    """Cast an array to the input's dtype. Raises DataError if numbers would change other than by
    rounding.
    """
    if array.dtype == object or np.dtype(dtype) == object:
        return np.ascontiguousarray(array, dtype)
    converted, misfit = numeric_cast.cast(array, dtype)
    if misfit >= 0:
        value = array.reshape(-1)[misfit]
        raise DataError(
            f"input {name!r} takes {np.dtype(dtype)}, which cannot hold {value} of {array.dtype}"
        )
    return np.ascontiguousarray(converted)
