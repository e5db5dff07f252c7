"""Folders of table formats: a log says which of their files count, and files of rows that have been deleted or changed
lie beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from farandole.data.extras import need
from farandole.errors import DataError

_ICEBERG = "metadata"  # its files lie beside this folder, in "data"
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", _ICEBERG: "Iceberg"}
_FILES = {"Delta": ", or, without Spark, the files that deltalake's DeltaTable(path).file_uris() names"}


def check_no_table(folders: Sequence[str], system: Any) -> None:
    """DataError for a table's folder, or one of its partitions. Files that are named one by one are somebody's
    choice."""
    kinds = need("pyarrow.fs", "reading Parquet").FileType
    for info in system.get_file_info(list(folders)):
        if info.type != kinds.Directory:
            continue
        for root in chain(info.path):
            above, _, name = root.rpartition("/")
            logs = [f"{root}/{log}" for log in _LOGS] + [f"{above}/{_ICEBERG}"] * (name == "data")
            for log in system.get_file_info(logs):
                if log.type == kinds.Directory and _is_log(log, system):
                    raise _error(info.path, log.path.rpartition("/")[0], _LOGS[log.base_name])


def chain(folder: str) -> Iterator[str]:
    """A folder, and those above it of which it is a partition (year=2024)."""
    yield (folder := folder.rstrip("/"))
    while "=" in folder.rpartition("/")[2]:
        yield (folder := folder.rpartition("/")[0])


def _is_log(folder: Any, system: Any) -> bool:
    """Whether a folder of that name is a table's log."""
    if folder.base_name != _ICEBERG:
        return True
    inside = system.get_file_info(need("pyarrow.fs", "reading Parquet").FileSelector(folder.path))
    return any(each.base_name.endswith(".metadata.json") for each in inside)


def _error(folder: str, table: str, kind: str) -> DataError:
    return DataError(
        f"{folder} is of the {kind} table {table}: its log says which files count, and those of rows that have been "
        "deleted or changed lie beside them. Give "
        f"from_spark(spark.read.format({kind.lower()!r}).load(path)){_FILES.get(kind, '')}"
    )
