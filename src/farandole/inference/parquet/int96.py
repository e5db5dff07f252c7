"""Timestamps in Parquet's old format (INT96), which Spark writes: instants, in microseconds of UTC.

Arrow reads them as nanoseconds without a time zone, which overflow in the year 9999 and which Spark
cannot read.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

UNIT = "us"  # unit of the columns after reading


def instants(file: Any) -> Any:
    """Return the columns of a file with a time zone added to INT96 timestamps.

    ``file``: a fragment that reads INT96 in microseconds.
    """
    # only INT96 columns are in nanoseconds in that schema
    plain, known = file.physical_schema, file.metadata.schema.to_arrow_schema()
    fields = [
        field.with_type(_kind(field.type, known.field(number).type))
        for number, field in enumerate(plain)
    ]
    return pa.schema(fields)


def _kind(kind: Any, known: Any) -> Any:
    types = pa.types
    if types.is_timestamp(kind):
        return (
            pa.timestamp(UNIT, "UTC")
            if (kind.unit, known.unit) == (UNIT, "ns") and kind.tz is None
            else kind
        )
    if types.is_map(kind):
        return pa.map_(
            _kind(kind.key_type, known.key_type), _field(kind.item_field, known.item_type)
        )
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field, known.value_type))
    if types.is_struct(kind):
        return pa.struct(
            [_field(field, known.field(number).type) for number, field in enumerate(kind)]
        )
    return kind


def _field(field: Any, known: Any) -> Any:
    return field.with_type(_kind(field.type, known))
