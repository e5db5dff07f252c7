"""Timestamps in Parquet's old form (INT96), as Spark writes them: they are instants, in
microseconds of UTC.

Arrow knows neither: it reads nanoseconds without a time zone, in which the year 9999 becomes
another one, and which Spark does not read again.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

UNIT = "us"  # of those that are read


def instants(file: Any) -> Any:
    """The columns of a file, a fragment whose INT96 has that unit: such timestamps with a time
    zone.
    """
    # which has nanoseconds for INT96 alone
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
