"""The constructors of datasets: ``Dataset.File`` and ``Dataset.Tabular``."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from azureml._farandole.texts import notice
from azureml.data import _files
from azureml.data._files import DatasetDefinition
from azureml.data.datapath import DataPath
from azureml.data.file_dataset import FileDataset
from azureml.data.tabular_dataset import TabularDataset
from azureml.exceptions import UserErrorException
from farandole.jobs.inputs.sources import is_url, local_path


class DataType(Enum):
    """The type of a column; the methods return values for ``set_column_types``."""

    STRING = "string"
    INTEGER = "int"
    FLOAT = "float"
    BOOLEAN = "bool"
    DATETIME = "datetime"

    @staticmethod
    def to_string() -> DataType:
        return DataType.STRING

    @staticmethod
    def to_long() -> DataType:
        return DataType.INTEGER

    @staticmethod
    def to_float() -> DataType:
        return DataType.FLOAT

    @staticmethod
    def to_bool() -> DataType:
        return DataType.BOOLEAN

    @staticmethod
    def to_datetime(formats: str | Sequence[str] | None = None) -> DataType:
        return DataType.DATETIME


class FileDatasetFactory:
    """``Dataset.File``."""

    @staticmethod
    def from_files(
        path: Any,
        validate: bool = True,
        partition_format: str | None = None,
        is_file: bool = False,
    ) -> FileDataset:
        """Return a dataset of files.

        Arguments:
            path: A path, URL, pattern, ``DataPath``, ``(datastore, path)``, or a list of these.
            validate: Check that there are files.
            partition_format: Not used.
            is_file: Not used: a single file is recognized.

        Raises DatasetValidationError if there are no such files, and UserErrorException for another
        kind of ``path``.
        """
        unused_partition_format(partition_format)
        definition = DatasetDefinition("file", sources_of(path))
        _files.check(definition, exists=validate)
        return FileDataset(definition)

    @staticmethod
    def upload_directory(
        src_dir: str,
        target: Any,
        pattern: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> FileDataset:
        """Copy a folder to a datastore and return it as a dataset.

        Arguments:
            src_dir: The folder.
            target: A ``DataPath``, ``(datastore, path)`` or a datastore.
            pattern: A pattern that the copied names match, such as ``*.csv``; None for all.
            overwrite: Replace existing files.
            show_progress: Print the names of the files.

        Raises UserErrorException if the folder does not exist or the datastore is not writable.
        """
        if not os.path.isdir(src_dir):
            raise UserErrorException(f"the folder src_dir={src_dir!r} does not exist")
        store, below = target_of(target)
        files = [
            os.path.join(where, name)
            for where, _, names in os.walk(src_dir)
            for name in sorted(names)
            if pattern is None
            or fnmatch.fnmatch(os.path.relpath(os.path.join(where, name), src_dir), pattern)
        ]
        store.upload_files(files, src_dir, below, overwrite=overwrite, show_progress=show_progress)
        return FileDatasetFactory.from_files((store, below))


class TabularDatasetFactory:
    """``Dataset.Tabular``."""

    @staticmethod
    def from_delimited_files(
        path: Any,
        validate: bool = True,
        include_path: bool = False,
        infer_column_types: bool = True,
        set_column_types: Mapping[str, Any] | None = None,
        separator: str = ",",
        header: bool | str = True,
        partition_format: str | None = None,
        support_multi_line: bool = False,
        empty_as_string: bool = False,
        encoding: str = "utf8",
    ) -> TabularDataset:
        """Return the table in CSV files, which pandas reads when its rows are needed.

        Arguments:
            path: As for ``Dataset.File.from_files``.
            validate: Check that there are files.
            include_path: Add the column ``Path``.
            infer_column_types: Recognize numbers; else all values are strings.
            set_column_types: A ``DataType`` for each column.
            separator: The text between columns.
            header: Whether the first line of each file has the names of the columns.
            partition_format: Not used.
            support_multi_line: Not used: quoted line ends are always read.
            empty_as_string: Read empty values as empty strings.
            encoding: The encoding of the files.

        Raises DatasetValidationError if there are no such files.
        """
        unused_partition_format(partition_format)
        without = header in (False, "no_header", "NO_HEADERS")
        options: dict[str, Any] = {
            "format": "csv",
            "sep": separator,
            "encoding": encoding,
            **({"header": None} if without else {}),
            **({} if infer_column_types else {"dtype": "str"}),
            **({"keep_default_na": False} if empty_as_string else {}),
        }
        return _table(path, options, validate, include_path, set_column_types)

    @staticmethod
    def from_parquet_files(
        path: Any,
        validate: bool = True,
        include_path: bool = False,
        set_column_types: Mapping[str, Any] | None = None,
        partition_format: str | None = None,
    ) -> TabularDataset:
        """Return the table in Parquet files; see ``from_delimited_files``."""
        unused_partition_format(partition_format)
        return _table(path, {"format": "parquet"}, validate, include_path, set_column_types)

    @staticmethod
    def from_json_lines_files(
        path: Any,
        validate: bool = True,
        include_path: bool = False,
        set_column_types: Mapping[str, Any] | None = None,
        partition_format: str | None = None,
        invalid_lines: str = "error",
        encoding: str = "utf8",
    ) -> TabularDataset:
        """Return the table in files with one JSON object a line; see ``from_delimited_files``."""
        unused_partition_format(partition_format)
        options = {"format": "json", "lines": True, "encoding": encoding}
        return _table(path, options, validate, include_path, set_column_types)

    @staticmethod
    def from_sql_query(*_: Any, **__: Any) -> TabularDataset:
        """Raise UserErrorException: there are no SQL datastores."""
        raise UserErrorException(
            "Dataset.Tabular.from_sql_query is not supported; read the query with"
            " pandas.read_sql, and register the result with register_pandas_dataframe"
        )

    @staticmethod
    def register_pandas_dataframe(
        dataframe: Any,
        target: Any,
        name: str,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        show_progress: bool = True,
    ) -> TabularDataset:
        """Write a DataFrame to a datastore as Parquet, and register it as a new dataset version.

        Arguments:
            dataframe: The DataFrame of pandas.
            target: A ``DataPath``, ``(datastore, path)`` or a datastore.
            name: The name of the dataset, and of its folder below the target.
            description: A description of the dataset.
            tags: The tags of the dataset.
            show_progress: Not used.

        Raises UserErrorException if the datastore is not on this host.
        """
        store, below = target_of(target)
        folder = store._local_folder(os.path.join(below, name))
        os.makedirs(folder, exist_ok=True)
        dataframe.to_parquet(os.path.join(folder, "data.parquet"), index=False)
        table = TabularDatasetFactory.from_parquet_files((store, os.path.join(below, name)))
        return table.register(store.workspace, name, description, tags, create_new_version=True)


def _table(
    path: Any,
    options: Mapping[str, Any],
    validate: bool,
    include_path: bool,
    types: Mapping[str, Any] | None,
) -> TabularDataset:
    """Return a tabular dataset. Raises DatasetValidationError if there are no such files."""
    names = {
        column: kind.value if isinstance(kind, DataType) else str(kind)
        for column, kind in (types or {}).items()
    }
    further = {"include_path": include_path, "column_types": names}
    definition = DatasetDefinition("tabular", sources_of(path), {**options, **further})
    _files.check(definition, exists=validate)
    return TabularDataset(definition)


def sources_of(path: Any) -> tuple[str, ...]:
    """Return absolute paths and URLs for the ``path`` of a dataset.

    ``path``: a path, URL, ``DataPath``, ``(datastore, path)``, or a list of these. Raises
    UserErrorException for other values.
    """
    if isinstance(path, list) and path:
        return tuple(source for each in path for source in sources_of(each))
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        return (text if is_url(text) else local_path(text) or text,)
    store, below = target_of(path)
    return (store._source(below),)


def target_of(target: Any) -> tuple[Any, str]:
    """Return the datastore and the path in it. Raises UserErrorException for other values."""
    if isinstance(target, DataPath):
        return target.datastore, target.path_on_datastore
    if isinstance(target, tuple) and len(target) == 2 and hasattr(target[0], "_source"):
        return target[0], str(target[1] or "")
    if hasattr(target, "path_on_datastore"):  # a DataReference
        return target.datastore, target.path_on_datastore
    if hasattr(target, "_source"):
        return target, ""
    raise UserErrorException(
        f"the path {target!r} must be a path, a URL, a DataPath, (datastore, path), or a list of"
        " these"
    )


def unused_partition_format(partition_format: str | None) -> None:
    """Print that a partition format has no effect."""
    if partition_format:
        notice(f"partition_format={partition_format!r} has no effect: no columns are made of paths")
