"""Column descriptions in a footer, in addition to Arrow's types: Spark's identify vectors, pandas'
its index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

SPARK = b"org.apache.spark.sql.parquet.row.metadata"
# these describe columns by name, and may omit columns
_BY_NAME = (b"pandas", b"geo", b"huggingface")
_NAMES = (  # Spark's names of Arrow types, as Spark reads them from a file
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "long"),
    (pa.types.is_uint8, "short"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_uint64, "decimal(20,0)"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_date32, "date"),
)
Field = Mapping[str, Any]


class _UnknownError(Exception):
    """A type that Spark has no name for."""


def of_file(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """Return a file's metadata that stays valid when columns are added or removed."""
    return {key: value for key, value in (metadata or {}).items() if key in _BY_NAME}


def described(files: Sequence[Any], schema: Any) -> dict[str, Field]:
    """Return Spark's descriptions of columns, by name, from the footers of ``files`` (fragments),
    if the file's column has the type in ``schema``.
    """
    fields: dict[str, Field] = {}
    for file in files:
        own = file.physical_schema
        for field in _fields((file.metadata.metadata or {}).get(SPARK)):
            name = field["name"]
            there = name not in fields and name in own.names and name in schema.names
            if there and _same_type(own.field(name).type, schema.field(name).type):
                fields[name] = field
    return fields


def for_spark(schema: Any, known: Mapping[str, Field]) -> dict[bytes, bytes]:
    """Return Spark's metadata for files with the columns of ``schema``, some of them described by
    ``known``.

    None if no column is described, or if Spark has no name for a column's type, because the
    metadata must describe all columns.
    """
    if not any(name in known for name in schema.names):
        return {}
    try:
        fields = [known.get(field.name) or _field(field) for field in schema]
    except _UnknownError:
        return {}
    return {SPARK: json.dumps({"type": "struct", "fields": fields}).encode()}


def _fields(text: bytes | None) -> list[Field]:
    try:
        schema = json.loads(text or b"{}")
        return [field for field in schema.get("fields", ()) if {"name", "type"} <= {*field}]
    except (ValueError, AttributeError, TypeError):  # written by another program
        return []


def _same_type(one: Any, other: Any) -> bool:
    """Return whether Spark's descriptions of two columns are equal."""
    try:
        return bool(_type(one) == _type(other))
    except _UnknownError:
        return False


def _field(field: Any) -> Field:
    return {
        "name": field.name,
        "type": _type(field.type),
        "nullable": field.nullable,
        "metadata": {},
    }


def _type(kind: Any) -> Any:
    """Return a type in the form of Spark's JSON."""
    types = pa.types
    if types.is_dictionary(kind):
        return _type(kind.value_type)
    if types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field) for field in kind]}
    if types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type),
            "valueType": _type(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {
            "type": "array",
            "elementType": _type(kind.value_type),
            "containsNull": kind.value_field.nullable,
        }
    if types.is_decimal(kind) and kind.precision <= 38:
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    for is_kind, name in _NAMES:
        if is_kind(kind):
            return name
    raise _UnknownError
