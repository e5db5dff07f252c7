"""Columns of a scan, and the options that a user gives for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.errors import DataError, did_you_mean


class Column(NamedTuple):
    """``kind``: number, list, vector, image, bytes, encoded or text. ``shape``: of one row's value.
    ``fill``: stands for null, and for the end of lists that are too short. ``decode``: makes an
    array of one row's bytes.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    fill: Any = None
    decode: Callable[[bytes], Any] | None = None

    @property
    def width(self) -> int:
        """Bytes of one row, 0 where only the file knows."""
        return (
            0
            if self.kind in ("encoded", "text")
            else int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        )


class ColumnOptions(NamedTuple):
    """The user's options for columns, each by name."""

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
        """Return the options as dicts of their own; None stands for no option."""
        return cls(dict(shapes or {}), dict(dtypes or {}), dict(fill or {}), dict(decode or {}))


def check_names(wanted: ColumnOptions, columns: Sequence[str]) -> None:
    """DataError for an option about a column that is not read."""
    for option in ("shapes", "dtypes", "fill", "decode"):
        for name in getattr(wanted, option):
            if name not in columns:
                near = did_you_mean(name, columns)
                raise DataError(
                    f"{option}={{{name!r}: ...}}: that column is not read; {', '.join(columns)}"
                    f" are{near}"
                )
