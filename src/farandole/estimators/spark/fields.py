"""Columns of a DataFrame, as Spark finds them by name."""

from __future__ import annotations

from typing import Any

from farandole.errors import DataError


def field_of(frame: Any, name: str) -> Any:
    """The field of a column, as Spark finds it by name: unless it is case sensitive, also by one in
    another case. None if there is none, or several.
    """
    exact = [each for each in frame.schema.fields if each.name == name]
    if exact or case_sensitive(frame):
        return exact[0] if len(exact) == 1 else None
    matching = [each for each in frame.schema.fields if each.name.lower() == name.lower()]
    return matching[0] if len(matching) == 1 else None


def unfound(frame: Any, what: str, name: str) -> DataError:
    """The error for a column without a ``field_of``."""
    fold = str if case_sensitive(frame) else str.lower
    same = [other for other in frame.columns if fold(other) == fold(name)]
    if same:
        return DataError(
            f"{what} column {name} is in the DataFrame {len(same)} times ({', '.join(same)}): give"
            " each a name of its own, by df.toDF(...), or select one"
        )
    return DataError(
        f"{what} column {name} does not exist in the DataFrame (it has {', '.join(frame.columns)})"
    )


def case_sensitive(frame: Any) -> bool:
    return str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
