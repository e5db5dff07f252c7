"""Folders of table formats: a log says which of their files count, and files of rows that have been deleted or changed
lie beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.data.extras import need
from farandole.errors import DataError

_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
_FILES = {"Delta": ", or, without Spark, the files that deltalake's DeltaTable(path).file_uris() names"}


def check_no_table(folders: Sequence[str], system: Any) -> None:
    """DataError for a table's folder, or one of its partitions. Files that are named one by one are somebody's choice.
    Iceberg's folders hold files that are no Parquet, which is told anyhow."""
    kinds = need("pyarrow.fs", "reading Parquet").FileType
    for info in system.get_file_info(list(folders)):
        if info.type != kinds.Directory:
            continue
        root = _root(info.path)
        for log in system.get_file_info([f"{root}/{name}" for name in _LOGS]):
            if log.type == kinds.Directory:
                kind = _LOGS[log.base_name]
                raise DataError(
                    f"{info.path} is of the {kind} table {root}: its log says which files count, and those of rows "
                    "that have been deleted or changed lie beside them. Give "
                    f"from_spark(spark.read.format({kind.lower()!r}).load(path)){_FILES.get(kind, '')}"
                )


def _root(folder: str) -> str:
    """The folder above those of partitions (year=2024)."""
    root = folder.rstrip("/")
    while "=" in root.rpartition("/")[2]:
        root = root.rpartition("/")[0]
    return root
