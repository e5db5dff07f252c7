"""Folders of table formats: a log lists their valid files, and files with deleted or changed rows
remain next to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from farandole.base.optional import require
from farandole.errors import DataError

_ICEBERG = "metadata"  # data files are in "data", next to this folder
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", _ICEBERG: "Iceberg"}
_FILES = {
    "Delta": ", or, without Spark, pass the files in deltalake's DeltaTable(path).file_uris()"
}


def check_no_table(folders: Sequence[str], system: Any) -> None:
    """Raise DataError for a table's folder, or for one of its partitions. Files listed one by one
    are the user's choice.
    """
    kinds = require("pyarrow.fs", "reading Parquet").FileType
    for info in system.get_file_info(list(folders)):
        if info.type != kinds.Directory:
            continue
        for root in chain(info.path):
            above, _, name = root.rpartition("/")
            logs = [f"{root}/{log}" for log in _LOGS]
            if name == "data":
                logs.append(f"{above}/{_ICEBERG}")
            for log in system.get_file_info(logs):
                if log.type == kinds.Directory and _is_log(log, system):
                    raise table_error(info.path, log.path.rpartition("/")[0], _LOGS[log.base_name])


def check_no_table_below(files: Sequence[str], folders: Sequence[str], system: Any) -> None:
    """Raise DataError if the files of named folders are in a table's folder."""
    named = {folder.rstrip("/") for folder in folders}
    if below := sorted(folders_between(files, named) - named):
        check_no_table(below, system)


def folders_between(files: Iterable[str], named: Collection[str]) -> set[str]:
    """Return the folders of files, up to the folders in ``named``; none for files that are named
    themselves.
    """
    folders: set[str] = set()
    for folder in {file.rpartition("/")[0] for file in files if file not in named}:
        above = [folder]
        while above[-1] not in named and "/" in above[-1]:
            above.append(above[-1].rpartition("/")[0])
        if above[-1] in named:
            folders.update(above)
    return folders


def chain(folder: str) -> Iterator[str]:
    """Yield a folder, and the folders above it that it partitions (year=2024)."""
    yield (folder := folder.rstrip("/"))
    while "=" in folder.rpartition("/")[2]:
        yield (folder := folder.rpartition("/")[0])


def _is_log(folder: Any, system: Any) -> bool:
    """Return whether a folder of that name is a table's log."""
    if folder.base_name != _ICEBERG:
        return True
    inside = system.get_file_info(
        require("pyarrow.fs", "reading Parquet").FileSelector(folder.path)
    )
    return any(each.base_name.endswith(".metadata.json") for each in inside)


def table_error(folder: str, table: str, kind: str) -> DataError:
    return DataError(
        f"{folder} belongs to the {kind} table {table}, whose log determines the valid files:"
        " others contain deleted or changed rows. Use"
        f" from_spark(spark.read.format({kind.lower()!r}).load(path)){_FILES.get(kind, '')}"
    )
