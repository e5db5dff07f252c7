"""The Parquet files behind paths, as pyarrow's fragments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.base.optional import require
from farandole.data import paths
from farandole.data.parquet.location import RowLocation
from farandole.data.parquet.streams import streamed
from farandole.data.parquet.tables import check_no_table, check_no_table_below
from farandole.errors import DataError

_PURPOSE = "reading Parquet"


def fragments(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: Mapping[str, Any] | None = None,
) -> tuple[list[Any], Any]:
    """Return Parquet files as pyarrow's fragments, in order of their paths, and their schema.

    Raises DataError if there are none.
    """
    ds = require("pyarrow.dataset", _PURPOSE)
    pa = require("pyarrow", _PURPOSE)
    named = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not named:
        raise DataError("path=[] names no file")
    located = [paths.arrow_filesystem(os.fspath(each), options) for each in named]
    system, inside = located[0][0], [each for _, each in located]
    files: Any = inside if len(inside) > 1 else inside[0]
    try:
        check_no_table(inside, system)
        files, base = _files_of(inside, system)
        # nanoseconds could not represent the year 9999
        form = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        dataset = ds.dataset(
            files, filesystem=system, format=form, partitioning="hive", partition_base_dir=base
        )
        found = sorted(dataset.get_fragments(), key=lambda file: str(file.path))
        check_no_table_below([file.path for file in found], inside, system)
        for file in found:
            _metadata(file)
            _check_once(file)
    except FileNotFoundError as error:
        cure = ". Patterns (*) are not expanded: name the folder" if "*" in str(path) else ""
        raise DataError(
            f"{path} cannot be read as Parquet: there is no such file or folder{cure}"
        ) from error
    except (pa.ArrowException, OSError) as error:
        _check_apart(files, system)
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    if not found:
        raise DataError(f"{path} contains no Parquet files")
    return found, dataset.schema


def _files_of(inside: Sequence[str], system: Any) -> tuple[Any, str | None]:
    """Expand the folders among several paths to their files. A single path is returned unchanged,
    unless a streaming log selects some of its files.

    The second value is the folder below which folder names are partition keys; None for Arrow's
    default.
    """
    ds, fs = require("pyarrow.dataset", _PURPOSE), require("pyarrow.fs", _PURPOSE)
    files: list[str] = []
    for info in system.get_file_info(list(inside)):
        folder = info.type == fs.FileType.Directory
        some = streamed(info.path, system) if folder else None
        if len(inside) == 1:
            return (inside[0], None) if some is None else (some, info.path)
        if folder and some is None:
            some = ds.dataset(info.path, filesystem=system, format="parquet").files
        files += [info.path] if some is None else some
    return files, None


def _metadata(file: Any) -> None:
    pa = require("pyarrow", _PURPOSE)
    try:
        file.ensure_complete_metadata()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path} cannot be read as Parquet: {error}") from error


def _check_once(file: Any) -> None:
    """Raise DataError for a file with duplicate column names."""
    names = file.physical_schema.names
    if len({*names}) < len(names):
        name = next(each for each in names if names.count(each) > 1)
        text = f"{names.count(name)} columns have this name, which is ambiguous"
        raise RowLocation(str(file.path)).error(
            name, None, f"{text}; rewrite the file with unique names"
        )


def _check_apart(files: Any, system: Any) -> None:
    """Raise DataError for files whose columns Arrow cannot unify, with each other or with the keys
    in their paths.

    Arrow's own error names neither the file nor a cure. Arrow does not compare schemas if it is
    given one.
    """
    ds, pa = require("pyarrow.dataset", _PURPOSE), require("pyarrow", _PURPOSE)
    # files that are not Parquet: the first error reports them
    with contextlib.suppress(pa.ArrowException, OSError):
        for file in ds.dataset(
            files, filesystem=system, format="parquet", schema=pa.schema([])
        ).get_fragments():
            _check_once(file)
            for name in file.physical_schema.names:
                if key := next(
                    (part for part in file.path.split("/")[:-1] if part.startswith(f"{name}=")),
                    None,
                ):
                    kind = file.physical_schema.field(name).type
                    text = (
                        f"its type is {kind} in the file, but the folder {key} has a value of"
                        " another type"
                    )
                    cure = "write the files without the column, or rename the folders"
                    raise RowLocation(file.path).error(name, None, f"{text}: {cure}")


def keys(file: Any) -> dict[str, Any]:
    """Return the partition keys in a file's path, such as year=2024/part.parquet."""
    return dict(require("pyarrow.dataset", _PURPOSE).get_partition_keys(file.partition_expression))
