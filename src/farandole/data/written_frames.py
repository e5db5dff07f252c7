"""DataFrames written to Parquet, once for all handles of the same rows."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.base.log import logger
from farandole.data import paths, plans, scratch
from farandole.data.spark_names import FOLDER, quote, spark_url
from farandole.errors import DataError

_PREFIX = "farandole-data"
# Hadoop's messages
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme \S+|Class \S+FileSystem not found")
_written: list[WrittenFrame] = []
# guards the list and the number of users; files are added once they are complete
_lock = threading.Lock()


class WriteOptions(NamedTuple):
    """Options for writing. ``parent``: the folder for the files of all DataFrames."""

    parent: str
    row_group: int
    compression: str | None


class FrameInput(NamedTuple):
    """A file that a DataFrame reads. ``size`` in bytes and ``time`` in nanoseconds are -1 if only
    another machine has the file.
    """

    url: str
    size: int
    time: int


class WrittenFrame:
    """The files of a DataFrame. ``users``: the number of handles not yet deleted."""

    def __init__(self, frame: Any, names: Sequence[str], options: WriteOptions, path: str) -> None:
        self.frame = frame
        self.names = tuple(names)
        self.options = options
        self.path = path
        self.inputs = _inputs(frame)
        self.plan = plans.on_server(frame)
        self.users = 0
        self._process = os.getpid()

    def holds(self, frame: Any, names: Sequence[str], options: WriteOptions) -> bool:
        """Return whether these are the rows of ``frame``: it is the same object, or has the same
        plan over unchanged files.
        """
        return bool(
            (self.names, self.options) == (tuple(names), options)
            and (self.frame is frame or (self._inputs_known() and self._same_plan(frame)))
            and (self.inputs, self.plan) == (_inputs(frame), plans.on_server(frame))
        )

    def _inputs_known(self) -> bool:
        return bool(self.inputs) and all(file.size >= 0 for file in self.inputs)

    def _same_plan(self, frame: Any) -> bool:
        """Return whether the plans are equal, including names, which Spark's comparison ignores."""
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
        # not in a process forked from the driver
        if self in _written and self._process == os.getpid():
            _written.remove(self)
            _remove(self.path, self.frame.sparkSession)


def find_or_write(frame: Any, names: Sequence[str], options: WriteOptions) -> WrittenFrame:
    """Return the files that hold the rows of these columns, writing them if necessary. The caller
    becomes one of their users.
    """
    with _lock:
        written = next((each for each in _written if each.holds(frame, names, options)), None)
        if written is None:
            written = _write(frame, names, options)
        written.users += 1
        return written


def _write(frame: Any, names: Sequence[str], options: WriteOptions) -> WrittenFrame:
    plans.check_no_delta(frame)
    scratch.remove_abandoned(paths.local(options.parent), _PREFIX)
    path = f"{spark_url(options.parent)}/{scratch.scratch_name(_PREFIX)}"
    columns = [quote(name) for name in names]
    writer = frame.select(*columns).write.option("parquet.block.size", options.row_group)
    if options.compression:
        writer = writer.option("compression", options.compression)
    written = WrittenFrame(frame, names, options, path)
    _written.append(written)
    try:
        writer.parquet(path)
    except BaseException as error:
        unknown = _NO_FILE_SYSTEM.search(str(error))
        if unknown is None:
            written.remove()
            raise
        _written.remove(written)  # its files are missing
        raise DataError(
            f"Spark cannot write to {options.parent}: {unknown[0]}. Add the file system to Spark"
            f" (for S3: hadoop-aws in spark.jars.packages, and s3a://), or set {FOLDER} to a"
            " folder that Spark and all ranks reach"
        ) from error
    return written


def _inputs(frame: Any) -> tuple[FrameInput, ...]:
    """Return the files that a DataFrame reads, with sizes and times, because an overwritten file
    has the same plan.

    Empty if they are unknown, and for databases or rows from the program.
    """
    try:
        return tuple(_frame_input(url) for url in sorted(plans.input_files(frame)))
    except Exception as error:  # some plans cannot list their files
        logger.debug("no input files: %s", error)
        return ()


def _frame_input(url: str) -> FrameInput:
    path = paths.local(urllib.parse.unquote(url))
    try:
        facts = None if path is None else os.stat(path)
    except OSError:
        facts = None
    if facts is None:
        return FrameInput(url, size=-1, time=-1)
    return FrameInput(url, facts.st_size, facts.st_mtime_ns)


def _remove(path: str, session: Any) -> None:
    """Remove a folder, whether or not Spark is still running. A failure is only logged, so that it
    does not hide another error.
    """
    local = paths.local(path)
    if local is not None:
        shutil.rmtree(local, ignore_errors=True)
        return
    try:
        context = getattr(session, "_sc", None)
        if context is not None and context._jsc is not None:
            hadoop = context._jvm.org.apache.hadoop.fs.Path(path)
            hadoop.getFileSystem(context._jsc.hadoopConfiguration()).delete(hadoop, True)
        else:
            system, inside = paths.arrow_filesystem(path)
            system.delete_dir(inside)
    except Exception as error:  # raised by py4j, pyarrow or fsspec
        logger.warning("%s could not be removed: %s. Remove it yourself.", path, error)


@atexit.register
def remove_all() -> None:
    for written in list(_written):
        written.remove()
