"""Columns of a scan, and the user's options for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.errors import DataError, did_you_mean


class Column(NamedTuple):
    """A column to read.

    ``kind``: number, list, vector, image, bytes, encoded, text, or one of Python objects: ragged
    (lists of numbers, each an array) or object. ``shape``: the shape of one row's value. ``fill``:
    the value that replaces nulls and pads short lists. ``decode``: the function that converts one
    row's bytes to an array.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    fill: Any = None
    decode: Callable[[bytes], Any] | None = None

    @property
    def width(self) -> int:
        """Return the size of one row in bytes; 0 if it varies with the file."""
        return (
            0
            if self.kind in ("encoded", "text", "ragged", "object")
            else int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        )


class ColumnOptions(NamedTuple):
    """The user's column options, each a mapping from column names."""

    shapes: Mapping[str, Sequence[int]]
    dtypes: Mapping[str, Any]
    fill: Mapping[str, Any]
    decode: Mapping[str, Callable[[bytes], Any]]

    @classmethod
    def of(
        cls,
        shapes: Mapping[str, Sequence[int]] | None,
        dtypes: Mapping[str, Any] | None,
        fill: Mapping[str, Any] | None,
        decode: Mapping[str, Callable[[bytes], Any]] | None,
    ) -> ColumnOptions:
        """Return the options as separate dicts; None means no option."""
        return cls(dict(shapes or {}), dict(dtypes or {}), dict(fill or {}), dict(decode or {}))


def check_names(wanted: ColumnOptions, columns: Sequence[str]) -> None:
    """Raise DataError for an option of a column that is not read."""
    for option in ("shapes", "dtypes", "fill", "decode"):
        for name in getattr(wanted, option):
            if name not in columns:
                near = did_you_mean(name, columns)
                raise DataError(
                    f"{option}={{{name!r}: ...}} names a column that is not read; the columns are"
                    f" {', '.join(columns)}{near}"
                )
