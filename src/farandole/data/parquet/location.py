"""Locations of rows, for errors about them."""

from __future__ import annotations

from typing import NamedTuple

from farandole.errors import DataError


class NullError(DataError):
    """A null in ``column``, for which there is no ``fill``."""

    column = ""


class RowLocation(NamedTuple):
    """A file, and the first of the rows in it."""

    file: str
    row: int = 0

    def error(self, column: str, row: int | None, text: str) -> DataError:
        row_text = "" if row is None else f", row {self.row + row}"
        return DataError(f"{self.file}{row_text}, column {column!r}: {text}")


class FrameLocation(RowLocation):
    """Rows of a DataFrame: its user knows neither the files that it was written to nor their
    order.
    """

    def error(self, column: str, row: int | None, text: str) -> DataError:
        return DataError(f"column {column!r} of the DataFrame: {text}")


def null_error(name: str, row: int | None, location: RowLocation) -> NullError:
    text = f"null; give fill={{{name!r}: value}}, or leave such rows out"
    error = NullError(*location.error(name, row, text).args)
    error.column = name
    return error
