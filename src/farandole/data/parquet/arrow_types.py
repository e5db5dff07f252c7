"""Kinds of Arrow types. ``types`` is ``pyarrow.types``; callers import it."""

from __future__ import annotations

from typing import Any

import numpy as np

VECTOR = {"type", "size", "indices", "values"}  # fields of Spark's vectors in Parquet
# fields of images from Spark's image source
IMAGE = {"height", "width", "nChannels", "mode", "data"}
UNDECODED = (
    "an image that Spark could not decode; drop such rows (option('dropInvalid', True) of its"
    " image source)"
)


def is_bytes(types: Any, kind: Any) -> bool:
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def number_dtype(types: Any, kind: Any) -> str:
    """Return the dtype of an Arrow number; "" for other types."""
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()).name)
    return "float64" if types.is_decimal(kind) else ""


def is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def innermost(types: Any, kind: Any) -> Any:
    while is_list(types, kind):
        kind = kind.value_type
    return kind


def cure(types: Any, kind: Any) -> str:
    """Return the cure for a column whose type cannot be cast to an array."""
    if types.is_struct(kind):
        field = kind.field(0).name if kind.num_fields else "field"
        advice = (
            "write its fields as separate columns (in a DataFrame, select them by name:"
            f" 's.{field}')"
        )
    elif types.is_map(kind):
        advice = "write its values as separate columns, one for each key, or as a list"
    elif is_list(types, kind):
        struct = types.is_struct(innermost(types, kind))
        advice = "write a list of numbers instead" + (" for each field" if struct else "")
    else:
        advice = "cast it to a number"
    return f"{advice}, or leave the column out"


def is_image(types: Any, kind: Any) -> bool:
    """Return whether images of Spark's image source have this type."""
    return bool(types.is_struct(kind)) and {field.name for field in kind} >= IMAGE
