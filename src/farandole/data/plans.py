"""What Spark makes a DataFrame of: the nodes of its plan, and whether other rows may come out
another time.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any

from farandole.data.parquet.tables import chain, folders_between, table_error

# Spark's own indexes of folders. Those of table formats (Delta) are equal although rows were
# deleted from the table.
_FOLDERS = {"InMemoryFileIndex", "PrunedInMemoryFileIndex", "CatalogFileIndex"}
_ONE_SLASH = re.compile("^file:/+")  # of a file's URL; folders of Hadoop have one slash
_OF_PROGRAMS = re.compile("Python|Pandas|Arrow")  # nodes with functions, which may read anything


def nodes(plan: Any) -> Iterator[Any]:
    """Those of a plan, and of its subqueries."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        for more in (node.children(), node.subqueries()):
            waiting += [more.apply(index) for index in range(more.size())]


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def holds(frame: Any, pattern: str) -> bool:
    """Whether there is such an expression, of Spark's TreePattern, before the optimizer makes
    values of them.
    """
    wanted = getattr(
        frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern, pattern
    )()
    return bool(frame._jdf.queryExecution().withCachedData().containsPattern(wanted))


def of_files(frame: Any) -> bool:
    """Whether the same plan over the same files gives the same rows: no table of a database is in
    it, no function of a program, and no current time. False where only a server has the plan (Spark
    Connect).
    """
    try:
        plan = frame._jdf.queryExecution().optimizedPlan()
        return bool(
            plan.deterministic()
            and not holds(frame, "CURRENT_LIKE")
            and not holds(frame, "PYTHON_UDF")
            and all(_of_files(node) for node in nodes(plan))
        )
    except Exception:  # a leaf of another kind has no relation
        return False


def _of_files(node: Any) -> bool:
    if not node.children().isEmpty():
        return _OF_PROGRAMS.search(kind(node)) is None
    relation = node.relation()
    return kind(relation) == "HadoopFsRelation" and kind(relation.location()) in _FOLDERS


def input_files(frame: Any) -> set[str]:
    """URLs of all files that the DataFrame reads now: with those of subqueries, and not as it was
    when Spark first looked at it (what was cached then may be so no more).
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
    """DataError where Spark reads files of a Delta table as they lie in its folder, whatever the
    log says of them. A DataFrame of the table itself has an index of its own.
    """
    try:
        table = next(_delta(frame), None)
    # Spark Connect; a cluster that does not let Python look at plans, or that folder
    except Exception:
        return
    if table is not None:
        raise table_error(*table, "Delta")


def _delta(frame: Any) -> Iterator[tuple[str, str]]:
    """Folders of Delta tables, or of partitions, from which plain files are read, with the
    table's.
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
    """What tells the plan of a DataFrame of Spark Connect from that of the same DataFrame at
    another time: its server looks at views and tables by their names, each time. None where this
    process has the plan.
    """
    if hasattr(frame, "_jdf"):
        return None
    try:
        return frame.select("*").semanticHash()  # a DataFrame keeps the first answer
    except Exception:
        return object()  # like no other
