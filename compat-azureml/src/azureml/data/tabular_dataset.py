"""``TabularDataset``: tables from CSV, Parquet and JSON files, read by pandas."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from azureml.data import _files
from azureml.data._files import DatasetDefinition
from azureml.data.abstract_dataset import AbstractDataset
from azureml.data.dataset_error_handling import DatasetExecutionError
from azureml.data.file_dataset import FileDataset
from azureml.exceptions import OptionalDependencyMissingException
from farandole.base.optional import require
from farandole.job.runs.home import RunsHome

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class TabularDataset(AbstractDataset):
    """A table from files, which are read when its rows are needed."""

    def to_pandas_dataframe(
        self, on_error: str = "null", out_of_range_datetime: str = "null"
    ) -> Any:
        """Return the rows as a pandas DataFrame. The arguments are not used.

        Raises OptionalDependencyMissingException without pandas, and DatasetExecutionError if a
        file cannot be read, or a selected column or a column with a given type does not exist.
        """
        pandas = pandas_module("to_pandas_dataframe()")
        frames = list(_frames(pandas, self._definition))
        table = frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)
        for step in self._definition.steps:
            table = _apply(table, step)
        return table.reset_index(drop=True)

    def keep_columns(self, columns: str | list[str], validate: bool = False) -> TabularDataset:
        """Return the dataset with these columns only; ``validate`` is not used."""
        return self._selected("keep", _listed(columns))

    def drop_columns(self, columns: str | list[str]) -> TabularDataset:
        """Return the dataset without these columns."""
        return self._selected("drop", _listed(columns))

    def to_csv_files(self, separator: str = ",") -> FileDataset:
        """Return the rows as a dataset of one CSV file, written to the home of the runs.

        Raises as ``to_pandas_dataframe``.
        """
        path = self._written_path("csv")
        self.to_pandas_dataframe().to_csv(path, sep=separator, index=False)
        return FileDataset(DatasetDefinition("file", (path,)))

    def to_parquet_files(self) -> FileDataset:
        """Return the rows as a dataset of one Parquet file, written to the home of the runs.

        Raises as ``to_pandas_dataframe``.
        """
        path = self._written_path("parquet")
        self.to_pandas_dataframe().to_parquet(path, index=False)
        return FileDataset(DatasetDefinition("file", (path,)))

    def _written_path(self, ending: str) -> str:
        folder = RunsHome().folder(os.path.join("azureml", ".shared", "tables"))
        return os.path.join(folder, f"{self.id}.{ending}")


def pandas_module(purpose: str) -> Any:
    """Return pandas. Raises OptionalDependencyMissingException if it is not installed."""
    try:
        return require("pandas", purpose)
    except ImportError as error:
        raise OptionalDependencyMissingException(str(error)) from error


def _listed(columns: str | list[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _frames(pandas: Any, definition: DatasetDefinition) -> Iterator[Any]:
    """Yield the table of each file."""
    options = dict(definition.options)
    kind, include_path = options.pop("format"), options.pop("include_path", False)
    types = options.pop("column_types", {})
    reader = {"csv": "read_csv", "parquet": "read_parquet", "json": "read_json"}[kind]
    for file in _files.files(definition._replace(steps=())):
        try:
            with file.system.open(file.path, "rb") as stream:
                table = getattr(pandas, reader)(stream, **options)
        except ImportError as error:  # a Parquet engine
            raise OptionalDependencyMissingException(str(error)) from error
        except Exception as error:
            raise DatasetExecutionError(
                f"{file.name} cannot be read as {kind}: {type(error).__name__}: {error}"
            ) from error
        if kind == "csv" and options.get("header", "infer") is None:
            table.columns = [f"Column{number + 1}" for number in range(table.shape[1])]
        if include_path:
            table.insert(0, "Path", f"/{file.name}")
        yield _with_types(pandas, table, types)


def _with_types(pandas: Any, table: Any, types: dict[str, str]) -> Any:
    """Convert columns to ``types``; a value that cannot be converted becomes missing."""
    _check_columns(table, types)
    for column, kind in types.items():
        if kind == "datetime":
            table[column] = pandas.to_datetime(table[column], errors="coerce")
        elif kind == "string":
            table[column] = table[column].map(str, na_action="ignore")
        elif kind == "bool":
            table[column] = _booleans(pandas, table[column])
        else:
            table[column] = pandas.to_numeric(table[column], errors="coerce")
            if kind == "int":
                table[column] = table[column].astype("Int64")
    return table


def _booleans(pandas: Any, column: Any) -> Any:
    """Return a column as ``bool``, or as pandas' ``boolean`` if values are missing.

    Texts are ``true``, ``false``, ``1`` and ``0`` in any case, and others missing; numbers other
    than 0 are true.
    """
    if pandas.api.types.is_numeric_dtype(column):
        found = column.astype("Float64").ne(0)
    else:
        texts = column.map(lambda value: str(value).strip().lower(), na_action="ignore")
        found = texts.map(_BOOLEANS).astype("boolean")
    return found if found.isna().any() else found.astype(bool)


def _check_columns(table: Any, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise DatasetExecutionError(
            f"the table has no column {missing[0]!r} (columns: {', '.join(table.columns)})"
        )


def _apply(table: Any, step: tuple[Any, ...]) -> Any:
    kind, *arguments = step
    if kind in ("keep", "drop"):
        _check_columns(table, arguments[0])
        return table[arguments[0]] if kind == "keep" else table.drop(columns=arguments[0])
    return table.iloc[_files.selected(range(len(table)), step)]
