"""The input and output columns of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from farandole.errors import DataError, SettingsError, did_you_mean
from farandole.inference.parquet.int96 import instants
from farandole.inference.returns import Type


def merged_schema(files: Sequence[Any], first: Any) -> Any:
    """Return the merged columns of all files, so that all output files have the same columns.

    A column has the widest of its types, and is null in files without it. Raises DataError if no
    type holds both.
    """
    own = {name for file in files for name in file.physical_schema.names}
    # columns from paths
    schema, last = pa.schema([field for field in first if field.name not in own]), None
    for file in files:
        if last is not None and file.physical_schema.equals(last):
            continue
        last = file.physical_schema
        try:
            schema = pa.unify_schemas([schema, instants(file)], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"{file.path}: a column has a different type than in {files[0].path}, and no type"
                f" holds both ({error}). Convert one of the files, or predict for each separately"
            ) from None
    names = dict.fromkeys([*first.names, *schema.names])
    return pa.schema([schema.field(name) for name in names])


def _known(names: Sequence[str], schema: Any, option: str) -> list[str]:
    for name in names:
        if name not in schema.names:
            near = did_you_mean(name, schema.names)
            raise SettingsError(
                f"{option}: the input has no column {name!r} (it has"
                f" {', '.join(schema.names)}){near}"
            )
    return list(names)


def _unique(names: list[str], option: str, cure: str) -> list[str]:
    """Return ``names``. Raises SettingsError for a duplicate."""
    if doubled := [name for number, name in enumerate(names) if name in names[:number]]:
        raise SettingsError(f"{option} names {doubled[0]!r} twice. To fix this, {cure}")
    return names


def input_columns(inputs: str | Sequence[str] | None, schema: Any, key: str | None) -> list[str]:
    """Return the model's input columns."""
    if key is not None:
        _known([key], schema, "key")
    if inputs is not None:
        names = _known([inputs] if isinstance(inputs, str) else inputs, schema, "inputs")
        return _unique(names, "inputs", "name it once, and use it twice in the model")
    others = [field for field in schema if field.name != key]
    arrays = [field for field in others if pa.types.is_nested(field.type)]
    chosen = others if len(others) == 1 else arrays
    if len(chosen) != 1:
        raise SettingsError(
            f"the input has columns {', '.join(schema.names)}. Choose the model's inputs among"
            " them (inputs=, --inputs)"
        )
    return [chosen[0].name]


def output_names(
    output: str | Sequence[str], kind: Type, kept: Sequence[str], errors: str
) -> list[str]:
    """Return the names of the new columns. Raises SettingsError for names that cannot be used."""
    names = [output] if isinstance(output, str) else list(output)
    if errors not in ("raise", "column"):
        raise SettingsError(f"errors={errors!r} must be 'raise' or 'column'")
    if not isinstance(output, str) and len(names) != len(kind.fields):
        raise SettingsError(
            f"{len(names)} output columns are named, but returns='{kind}' has {len(kind.fields)}"
            " fields"
        )
    if errors == "column":
        names.append(f"{names[0]}_error")
    if doubled := [name for number, name in enumerate(names) if name in names[:number]]:
        raise SettingsError(
            f"two new columns are named {doubled[0]!r}. Choose other names with output_columns="
        )
    if taken := [name for name in names if name in kept]:
        raise SettingsError(
            f"the input already has a column {taken[0]!r}. Choose another name with output_columns="
        )
    return names


def kept_columns(keep: Sequence[str] | None, schema: Any) -> list[str]:
    """Return the input columns to copy to the output: all, unless ``keep`` names some."""
    names = _known(schema.names if keep is None else keep, schema, "keep")
    return _unique(names, "keep", "name it once")
