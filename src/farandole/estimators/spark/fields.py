"""Columns of a DataFrame, found by name as Spark does."""

from __future__ import annotations

from typing import Any

from farandole.errors import DataError


def field_of(frame: Any, name: str) -> Any:
    """Return the field of a column; None if there is none or several.

    The case of names is ignored unless Spark is case sensitive.
    """
    exact = [each for each in frame.schema.fields if each.name == name]
    if exact or case_sensitive(frame):
        return exact[0] if len(exact) == 1 else None
    matching = [each for each in frame.schema.fields if each.name.lower() == name.lower()]
    return matching[0] if len(matching) == 1 else None


def field_error(frame: Any, what: str, name: str) -> DataError:
    """Return the error for a column for which ``field_of`` returned None."""
    fold = str if case_sensitive(frame) else str.lower
    same = [other for other in frame.columns if fold(other) == fold(name)]
    if same:
        return DataError(
            f"{what} column {name} occurs {len(same)} times in the DataFrame ({', '.join(same)})."
            " Rename the columns with df.toDF(...), or select one"
        )
    return DataError(
        f"{what} column {name} does not exist in the DataFrame (it has {', '.join(frame.columns)})"
    )


def case_sensitive(frame: Any) -> bool:
    return str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
