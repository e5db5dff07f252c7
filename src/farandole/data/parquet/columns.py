"""Columns of a scan, and the user's options for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.errors import DataError, did_you_mean


class Column(NamedTuple):
    """A column to read.

    ``kind``: number, list, vector, image, bytes, encoded, text, or one of Python objects: ragged
    (lists of numbers, each an array) or object. ``shape``: of one row's value.
    ``fill``: replaces null, and pads lists that are too short. ``decode``: makes an array from one
    row's bytes.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    fill: Any = None
    decode: Callable[[bytes], Any] | None = None

    @property
    def width(self) -> int:
        """Return the bytes of one row; 0 if only the file knows."""
        return (
            0
            if self.kind in ("encoded", "text", "ragged", "object")
            else int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        )


class ColumnOptions(NamedTuple):
    """The user's options for columns, each by column name."""

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
    """Raise DataError for an option about a column that is not read."""
    for option in ("shapes", "dtypes", "fill", "decode"):
        for name in getattr(wanted, option):
            if name not in columns:
                near = did_you_mean(name, columns)
                raise DataError(
                    f"{option}={{{name!r}: ...}} names a column that is not read; the columns are"
                    f" {', '.join(columns)}{near}"
                )
