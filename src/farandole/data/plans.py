"""Spark's plan of a DataFrame: its nodes, and whether computing it again may return other rows."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any

from farandole.data.parquet.tables import chain, folders_between, table_error

# Spark's own indexes of folders. Indexes of table formats (Delta) compare as equal even after rows
# were deleted from the table.
_FOLDERS = {"InMemoryFileIndex", "PrunedInMemoryFileIndex", "CatalogFileIndex"}
_ONE_SLASH = re.compile("^file:/+")  # in a file's URL; Hadoop's folders have one slash
# nodes with user functions, which may read anything
_OF_PROGRAMS = re.compile("Python|Pandas|Arrow")


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan and of its subqueries."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        for more in (node.children(), node.subqueries()):
            waiting += [more.apply(index) for index in range(more.size())]


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def holds(frame: Any, pattern: str) -> bool:
    """Return whether the unoptimized plan has an expression of Spark's TreePattern ``pattern``. The
    optimizer would replace such expressions by values.
    """
    wanted = getattr(
        frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern, pattern
    )()
    return bool(frame._jdf.queryExecution().withCachedData().containsPattern(wanted))


def of_files(frame: Any) -> bool:
    """Return whether the same plan over the same files gives the same rows: it has no database
    table, no user function, and no current time.

    False if only a server has the plan (Spark Connect).
    """
    try:
        plan = frame._jdf.queryExecution().optimizedPlan()
        return bool(
            plan.deterministic()
            and not holds(frame, "CURRENT_LIKE")
            and not holds(frame, "PYTHON_UDF")
            and all(_of_files(node) for node in nodes(plan))
        )
    except Exception:  # other kinds of leaves have no relation
        return False


def _of_files(node: Any) -> bool:
    if not node.children().isEmpty():
        return _OF_PROGRAMS.search(kind(node)) is None
    relation = node.relation()
    return kind(relation) == "HadoopFsRelation" and kind(relation.location()) in _FOLDERS


def input_files(frame: Any) -> set[str]:
    """Return the URLs of all files that the DataFrame reads now, including subqueries' files.

    Spark's list from the first analysis of the DataFrame may be outdated, as may its caches.
    """
    fresh = frame.select("*")
    urls = set(fresh.inputFiles())
    try:
        every = [*nodes(fresh._jdf.queryExecution().optimizedPlan())]
    except Exception:  # Spark Connect
        return urls
    for relation in _of_folders(every):
        urls.update(relation.inputFiles())
    return urls


def _of_folders(every: Iterable[Any]) -> list[Any]:
    relations = (node.relation() for node in every if kind(node) == "LogicalRelation")
    return [each for each in relations if kind(each) == "HadoopFsRelation"]


def check_no_delta(frame: Any) -> None:
    """Raise DataError if Spark reads a Delta table's folder as plain files, ignoring its log.

    A DataFrame of the table itself has its own index.
    """
    try:
        table = next(_delta(frame), None)
    # Spark Connect, or a cluster that does not allow access to plans or that folder
    except Exception:
        return
    if table is not None:
        raise table_error(*table, "Delta")


def _delta(frame: Any) -> Iterator[tuple[str, str]]:
    """Yield folders of Delta tables, or of their partitions, that are read as plain files, each
    with the table's folder.
    """
    hadoop = frame.sparkSession._jvm.org.apache.hadoop.fs.Path
    conf = frame.sparkSession._jsc.hadoopConfiguration()
    for relation in _of_folders(nodes(frame._jdf.queryExecution().optimizedPlan())):
        if kind(relation.location()) not in _FOLDERS:
            continue
        roots = relation.location().rootPaths()
        named = [str(roots.apply(index)) for index in range(roots.size())]
        files = [
            _ONE_SLASH.sub("file:/", urllib.parse.unquote(url)) for url in relation.inputFiles()
        ]
        for folder in sorted(folders_between(files, {*named})):
            for root in chain(folder):
                log = hadoop(f"{root}/_delta_log")
                if log.getFileSystem(conf).exists(log):
                    yield folder, root


def on_server(frame: Any) -> Any:
    """Return a key that identifies the plan of a Spark Connect DataFrame at this time; None if this
    process has the plan.

    The server resolves views and tables by name each time, so the plan may change.
    """
    if hasattr(frame, "_jdf"):
        return None
    try:
        return frame.select("*").semanticHash()  # a DataFrame caches its first result
    except Exception:
        return object()  # unequal to any other key
