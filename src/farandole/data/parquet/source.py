"""Parquet files as a source of rows: the files, the columns, and how they are read."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from farandole.data.parquet.columns import Column, ColumnOptions
from farandole.data.parquet.location import RowLocation
from farandole.data.parquet.scan import Scan, scan_files
from farandole.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from farandole.base.types import Array


class ParquetSource:
    """Parquet files, the columns to read, and the options for reading them. May be pickled."""

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        features: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        weight: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        fill: Mapping[str, Any] | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        objects: bool = False,
    ) -> None:
        self.path = os.fspath(path) if isinstance(path, os.PathLike) else path
        self.features = None if features is None else _names(features)
        self.labels = _names(labels or ())
        self.weight = weight
        self.storage_options = dict(storage_options) if storage_options else None
        self._objects = objects
        self._columns = None if columns is None else tuple(columns)
        self.column_options = ColumnOptions.of(shapes, dtypes, fill, decode)
        for option, names in (("columns", self._columns), ("features", self.features)):
            if names == ():
                raise DataError(f"{option}=[] names no column. Omit it to read all columns")
        if columns is not None and features is not None:
            raise DataError(
                f"columns={list(columns)} and features={features!r} mean the same. Pass only one of"
                " them"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @cached_property
    def scan(self) -> Scan:
        """The contents of the files: read once from their footers, and pickled with the handle."""
        return scan_files(
            self.path,
            self.storage_options,
            self.selected,
            self.column_options,
            self.weight,
            self.location,
            everything=self.features is None and self._columns is None,
            objects=self._objects,
        )

    @property
    def rows(self) -> int:
        """The number of rows of all ranks."""
        return self.scan.rows

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns to read: name, kind, dtype and shape of a row."""
        return self.scan.columns

    def location(self, file: str, row: int = 0) -> RowLocation:
        """Return the location of rows of a file, for errors."""
        return RowLocation(file, row)

    def selected(self, known: Sequence[str], source: str = "") -> list[str]:
        """Return the names of the columns to read, out of all ``known`` ones. ``source``: names
        their origin in errors.
        """
        others = {*self.labels, self.weight}
        chosen = self.features or self._columns or [name for name in known if name not in others]
        names = list(
            dict.fromkeys([*chosen, *self.labels, *([self.weight] if self.weight else [])])
        )
        for name in names:
            if name not in known:
                what = (
                    "Label column"
                    if name in self.labels
                    else "Weight column"
                    if name == self.weight
                    else "Column"
                )
                near = did_you_mean(name, known)
                raise DataError(
                    f"{what} {name} does not exist in {source or self.path} (which has"
                    f" {', '.join(known)}){near}"
                )
        return names

    def only(self, names: Sequence[str]) -> ParquetSource:
        """Return a source with only these columns of the same files."""
        chosen = copy.copy(self)
        chosen.scan = self.scan._replace(
            columns=tuple(each for each in self.columns if each.name in names)
        )
        chosen.features = None
        chosen.labels = ()
        chosen.weight = None
        chosen._columns = tuple(names)
        return chosen

    def batch(self, arrays: Mapping[str, Array], weight: Array | None = None) -> Any:
        """Return columns in a training loop's form: a dict; with labels ``(inputs, labels)``, and
        with a weight ``(inputs, labels, weight)``. A single column is an array, several are a dict.
        """
        special = {*self.labels, self.weight}
        inputs = {name: array for name, array in arrays.items() if name not in special}
        weights = () if weight is None else (weight,)
        if not self.labels:
            return (inputs, *weights) if weights else inputs
        chosen = [{name: arrays[name] for name in self.features} if self.features else inputs]
        chosen.append({name: arrays[name] for name in self.labels})
        return (
            *(next(iter(part.values())) if len(part) == 1 else part for part in chosen),
            *weights,
        )


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
