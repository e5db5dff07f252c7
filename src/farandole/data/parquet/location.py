"""Locations of rows, for errors about them."""

from __future__ import annotations

from typing import NamedTuple

from farandole.errors import DataError


class NullError(DataError):
    """A null in ``column``, which has no ``fill``."""

    column = ""


class RowLocation(NamedTuple):
    """A file, and the first of the rows in question."""

    file: str
    row: int = 0

    def error(self, column: str, row: int | None, text: str) -> DataError:
        row_text = "" if row is None else f", row {self.row + row}"
        return DataError(f"{self.file}{row_text}, column {column!r}: {text}")


class FrameLocation(RowLocation):
    """Rows of a DataFrame. The user knows neither the files to which it was written nor their
    order.
    """

    def error(self, column: str, row: int | None, text: str) -> DataError:
        return DataError(f"column {column!r} of the DataFrame: {text}")


def null_error(name: str, row: int | None, location: RowLocation) -> NullError:
    text = f"null; give fill={{{name!r}: value}}, or drop such rows"
    error = NullError(*location.error(name, row, text).args)
    error.column = name
    return error
