"""``from_spark``: a DataFrame, written to Parquet once, as data that any training function can open
on its rank.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.base.log import logger
from farandole.data import paths, plans, scratch
from farandole.data.parquet import ParquetData
from farandole.data.parquet.location import FrameLocation, RowLocation
from farandole.errors import DataError, SettingsError

# bytes: small enough to mix rows of many, large enough to be read at full speed
ROW_GROUP = 4 << 20
FOLDER = "spark.farandole.data.dir"  # Spark's setting for the folder
_PREFIX = "farandole-data"
# as Hadoop says it
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme \S+|Class \S+FileSystem not found")
_written: list[_Written] = []
_lock = threading.Lock()  # files are found when they are complete, and counted


class _Written:
    """A DataFrame's files. ``users``: handles that nobody has deleted."""

    def __init__(self, frame: Any, names: Sequence[str], how: _How, path: str) -> None:
        self.frame, self.names, self.how, self.path = frame, tuple(names), how, path
        self.inputs, self.plan = _inputs(frame), plans.on_server(frame)
        self.users = 0
        self._process = os.getpid()

    def holds(self, frame: Any, names: Sequence[str], how: _How) -> bool:
        """Whether these are the rows of ``frame``: it is the same object, or has the same plan over
        files of which it is known that they have not changed.
        """
        return bool(
            (self.names, self.how) == (tuple(names), how)
            and (self.frame is frame or (self._known() and self._alike(frame)))
            and (self.inputs, self.plan) == (_inputs(frame), plans.on_server(frame))
        )

    def _known(self) -> bool:
        return bool(self.inputs) and all(size >= 0 for _, size, _ in self.inputs)

    def _alike(self, frame: Any) -> bool:
        """The same plan, whose comparison by Spark knows no names."""
        mine = self.frame
        return bool(
            plans.of_files(frame)
            and mine.sparkSession is frame.sparkSession
            and mine.schema == frame.schema
            and mine.semanticHash() == frame.semanticHash()
            and mine.sameSemantics(frame)
        )

    def release(self) -> None:
        if self._process != os.getpid():
            return
        with _lock:
            self.users -= 1
            if not self.users:
                self.remove()

    def remove(self) -> None:
        # not by a process that was forked from the driver
        if self in _written and self._process == os.getpid():
            _written.remove(self)
            _remove(self.path, self.frame.sparkSession)


class _How(NamedTuple):
    """What else decides about the files."""

    parent: str
    row_group: int
    compression: str | None


class SparkData(ParquetData):
    """Made by ``from_spark``. ``delete()``, or leaving a ``with`` block, removes the files when no
    other handle has them; so does the end of this process. Copies (in a training function) own
    nothing.
    """

    _files_of: _Written | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_files_of"}

    def location(self, file: str, row: int = 0) -> RowLocation:
        """The DataFrame: its files are gone when somebody reads an error."""
        return FrameLocation(file, row)

    def __enter__(self) -> SparkData:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def delete(self) -> None:
        """Remove the files, unless another handle has them, too. May be called twice."""
        written, self._files_of = self._files_of, None
        if written is not None:
            written.release()


def from_spark(
    frame: Any,
    *,
    parent: str | None = None,
    row_group_bytes: int = ROW_GROUP,
    compression: str | None = None,
    **options: Any,
) -> SparkData:
    """A DataFrame as data to train on: ``with from_spark(df, features="x", labels="y") as data:
    ...``

    Its columns that are asked for are written to Parquet, once: the same DataFrame, and one with
    the same plan that reads the same files of this machine, finds them there. ``options``: as those
    of ``from_parquet``. ``parent``: the folder, which driver and ranks reach by this name; default:
    the setting spark.farandole.data.dir, and on one machine the temporary folder. ``compression``:
    Spark's name of it, default: Spark's own choice.

    Raises TypeError for what is no DataFrame of Spark, DataError for columns that cannot be used,
    and for a DataFrame without rows; what Spark raises when it cannot compute the DataFrame comes
    as it is. Nothing is left behind then.
    """
    _check_frame(frame)
    if "storage_options" in options and parent is None:
        raise SettingsError("storage_options need parent=, the folder that they are for")
    how = _How(parent or _parent(frame.sparkSession), row_group_bytes, compression)
    data = SparkData("", **options)
    names = data.selected(frame.columns, "the DataFrame")
    with _lock:
        written = next(
            (each for each in _written if each.holds(frame, names, how)), None
        ) or _write(frame, names, how)
        written.users += 1
    data.path = paths.normalized(written.path)
    data._files_of = written
    try:
        if not data.rows:
            raise DataError("the DataFrame has no rows")
    except ImportError as error:
        logger.info("the ranks look at the data first: %s", error)
    except BaseException:
        data.delete()
        raise
    return data


def _check_frame(frame: Any) -> None:
    """TypeError, with the cure, for what is no DataFrame of Spark."""
    if hasattr(frame, "sparkSession"):
        return
    kind = f"{type(frame).__module__}.{type(frame).__qualname__}".removeprefix("builtins.")
    cure = "give spark.createDataFrame(it), or write it to Parquet and use from_parquet(path)"
    if isinstance(frame, str | os.PathLike):
        cure = f"for files give spark.read.parquet(path), or use from_parquet({os.fspath(frame)!r})"
    elif hasattr(frame, "to_spark"):
        cure = "give its to_spark()"
    elif hasattr(frame, "toDF"):
        cure = "give its toDF()"
    raise TypeError(f"from_spark takes a DataFrame of Spark, and this is a {kind}: {cure}")


def _write(frame: Any, names: Sequence[str], how: _How) -> _Written:
    plans.check_no_delta(frame)
    scratch.remove_abandoned(paths.local(how.parent), _PREFIX)
    path = f"{spark_url(how.parent)}/{scratch.scratch_name(_PREFIX)}"
    columns = ["`" + name.replace("`", "``") + "`" for name in names]
    writer = frame.select(*columns).write.option("parquet.block.size", how.row_group)
    if how.compression:
        writer = writer.option("compression", how.compression)
    written = _Written(frame, names, how, path)
    _written.append(written)
    try:
        writer.parquet(path)
    except BaseException as error:
        unknown = _NO_FILE_SYSTEM.search(str(error))
        if unknown is None:
            written.remove()
            raise
        _written.remove(written)  # nothing is there
        raise DataError(
            f"Spark cannot write to {how.parent}: {unknown[0]}. Give Spark the file system (for S3:"
            f" hadoop-aws in spark.jars.packages, and s3a://), or set {FOLDER} to a folder that"
            " Spark and all ranks reach"
        ) from error
    return written


def shared_folder(session: Any) -> str:
    """That of the session's setting; on one machine, the temporary one. "" where nobody knows
    one.
    """
    found = session.conf.get(FOLDER, "")
    if not found and session.conf.get("spark.master", "").startswith("local"):
        found = tempfile.gettempdir()
    return str(found)


def _parent(session: Any) -> str:
    found = shared_folder(session)
    if not found:
        raise SettingsError(
            "from_spark needs a folder that Spark and all ranks reach by one name:"
            " parent='hdfs://...', s3://, abfs://, /Volumes/... or a folder on a shared disk; or"
            f" set {FOLDER} for the session"
        )
    return found


def spark_url(parent: str) -> str:
    """What Spark calls the folder: without a scheme it would look on the cluster's default file
    system.
    """
    parent = parent.rstrip("/")
    if parent.startswith("/dbfs/"):
        return "dbfs:" + parent.removeprefix("/dbfs")
    found = paths.local(parent)
    if found is None or parent.startswith(("dbfs:", "/Volumes/")):
        return parent
    return f"file://{found}"


def _inputs(frame: Any) -> tuple[tuple[str, int, int], ...]:
    """The files that a DataFrame reads, with sizes and times: what was overwritten has the plan of
    before. Empty where they are not known, and for a database or rows of the program.
    """
    try:
        return tuple(_stamp(url) for url in sorted(plans.input_files(frame)))
    except Exception as error:  # not every kind of plan can say
        logger.debug("no input files: %s", error)
        return ()


def _stamp(url: str) -> tuple[str, int, int]:
    """A file's name, size and time; -1 for those that only another machine knows."""
    found = paths.local(urllib.parse.unquote(url))
    try:
        facts = None if found is None else os.stat(found)
    except OSError:
        facts = None
    return (url, -1, -1) if facts is None else (url, facts.st_size, facts.st_mtime_ns)


def _remove(path: str, session: Any) -> None:
    """Remove a folder, whether or not Spark is still there. A failure is told, and hides no other
    error.
    """
    found = paths.local(path)
    if found is not None:
        shutil.rmtree(found, ignore_errors=True)
        return
    try:
        context = getattr(session, "_sc", None)
        if context is not None and context._jsc is not None:
            hadoop = context._jvm.org.apache.hadoop.fs.Path(path)
            hadoop.getFileSystem(context._jsc.hadoopConfiguration()).delete(hadoop, True)
        else:
            system, inside = paths.arrow_filesystem(path)
            system.delete_dir(inside)
    except Exception as error:  # of py4j, pyarrow or fsspec
        logger.warning("%s could not be removed: %s. Remove it yourself.", path, error)


@atexit.register
def _remove_all() -> None:
    for each in list(_written):
        each.remove()
