"""Output folders of Spark's streaming queries. Files of failed attempts remain among the others,
and a log lists the valid files.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Any, NamedTuple

from farandole.base.log import logger
from farandole.base.optional import require
from farandole.data.parquet.tables import chain
from farandole.errors import DataError

_LOG = "_spark_metadata"
# file names of a log; a compact file repeats all entries before it
_BATCH = re.compile(r"(\d+)(\.compact)?")
_VERSION = "v1"


class _Batch(NamedTuple):
    number: int
    compact: bool
    path: str


def streamed(folder: str, system: Any) -> list[str] | None:
    """Return the files in a folder that a streaming query's log lists; None without a log.

    Raises DataError for an incomplete log, and for missing files.
    """
    fs = require("pyarrow.fs", "reading Parquet")
    for root in chain(folder):
        if system.get_file_info(f"{root}/{_LOG}").type == fs.FileType.Directory:
            break
    else:
        return None
    named = {_name(path): path for path in _named(f"{root}/{_LOG}", system)}
    listed = system.get_file_info(fs.FileSelector(folder, recursive=True))
    places = [each.path for each in listed if each.type == fs.FileType.File]
    files = sorted(
        path for path in places if named.get(_name(path), "").endswith(_inside(path, root))
    )
    there, inside = {*map(_name, files)}, f"{_inside(folder, root)}/"
    missing = [path for name, path in named.items() if inside in path and name not in there]
    if missing:
        raise DataError(
            f"{root}/{_LOG} lists {missing[0]}, which is not in {folder}: a file of the streaming"
            " query was removed. Name the remaining files one by one, or write the rows again in"
            " a batch query"
        )
    others = [path for path in places if path.endswith(".parquet") and path not in {*files}]
    if others:
        logger.warning(
            "%s: skipping %s of %s files that are not in the streaming query's log, as Spark"
            " does. One of them is %s, written by a failed attempt or a batch query",
            folder,
            len(others),
            len(others) + len(files),
            others[0],
        )
    return files


def _name(path: str) -> str:
    """Return the name of a file, which is unique because of a random part."""
    return path.rpartition("/")[2]


def _inside(path: str, root: str) -> str:
    """Return the path below the folder that has the log, which may have been moved since the log
    was written.
    """
    return path.removeprefix(root).rstrip("/")


def _named(log: str, system: Any) -> list[str]:
    """Return the paths that a log lists, as they were when it was written."""
    paths: dict[str, None] = {}
    for batch in _batches(log, system):
        with system.open_input_stream(batch.path) as file:
            version, *entries = file.read().decode().splitlines() or [""]
        if version != _VERSION:
            raise _unread(batch.path, f"its version is {version!r}, not {_VERSION!r}")
        for entry in map(json.loads, entries):
            path = urllib.parse.unquote(urllib.parse.urlsplit(entry["path"]).path)
            if entry["action"] == "add":
                paths[path] = None
            else:  # written by Spark 2
                paths.pop(path, None)
    return [*paths]


def _batches(log: str, system: Any) -> list[_Batch]:
    """Return the last compact batch of a log, and later batches. Raises DataError if one is
    missing.
    """
    selector, every = require("pyarrow.fs", "reading Parquet").FileSelector, []
    for info in system.get_file_info(selector(log)):
        if match := _BATCH.fullmatch(info.base_name):
            every.append(_Batch(int(match[1]), bool(match[2]), info.path))
    batches = sorted(each for each in every if each.compact)[-1:]
    first = batches[0].number if batches else 0
    batches += sorted(
        each for each in every if not each.compact and each.number >= first + len(batches)
    )
    if [each.number for each in batches] != [*range(first, first + len(batches))]:
        raise _unread(log, f"some of the batches {first} to {batches[-1].number} are missing")
    return batches


def _unread(path: str, why: str) -> DataError:
    return DataError(
        f"{path} does not show which files are valid: {why}. Use"
        " from_spark(spark.read.parquet(folder))"
    )
