"""``from_spark``: a DataFrame, written to Parquet once, as data that any training function can open
on its rank.
"""

from __future__ import annotations

import os
from typing import Any

from farandole.base.log import logger
from farandole.data import paths
from farandole.data.parquet import ParquetData
from farandole.data.parquet.location import FrameLocation, RowLocation
from farandole.data.spark_names import write_folder
from farandole.data.written_frames import WriteOptions, WrittenFrame, find_or_write
from farandole.errors import DataError, SettingsError

# bytes: small enough to mix rows of many, large enough to read at full speed
ROW_GROUP = 4 << 20


class SparkData(ParquetData):
    """Data made by ``from_spark``.

    ``delete()``, the end of a ``with`` block, and the end of this process remove the files, unless
    another handle uses them. Copies (in a training function) own no files.
    """

    _files_of: WrittenFrame | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_files_of"}

    def location(self, file: str, row: int = 0) -> RowLocation:
        """Return the DataFrame as the location, because the files may be gone when an error is
        read.
        """
        return FrameLocation(file, row)

    def __enter__(self) -> SparkData:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def delete(self) -> None:
        """Remove the files, unless another handle uses them. May be called twice."""
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
    """Return a DataFrame as training data: ``with from_spark(df, features="x", labels="y") as data:
    ...``

    The requested columns are written to Parquet, once: the same DataFrame, and one with the same
    plan over the same files of this machine, reuses the written files. ``options``: as for
    ``from_parquet``. ``parent``: the folder for the files, which driver and ranks reach by this
    name; default: the setting spark.farandole.data.dir, and on one machine the temporary folder.
    ``row_group_bytes``: the size of row groups. ``compression``: Spark's name for the codec;
    default: Spark's own choice.

    Raises TypeError if ``frame`` is not a Spark DataFrame, and DataError for unusable columns and
    for a DataFrame without rows; errors of Spark's computation pass through. No files remain after
    an error.
    """
    _check_frame(frame)
    if "storage_options" in options and parent is None:
        raise SettingsError("storage_options needs parent=, the folder to which they apply")
    write_options = WriteOptions(
        parent=parent or write_folder(frame.sparkSession),
        row_group=row_group_bytes,
        compression=compression,
    )
    data = SparkData("", **options)
    names = data.selected(frame.columns, "the DataFrame")
    written = find_or_write(frame, names, write_options)
    data.path = paths.normalized(written.path)
    data._files_of = written
    try:
        if not data.rows:
            raise DataError("the DataFrame has no rows")
    except ImportError as error:
        logger.info("the ranks will check the data, because this process cannot: %s", error)
    except BaseException:
        data.delete()
        raise
    return data


def _check_frame(frame: Any) -> None:
    """Raise TypeError, with the cure, if ``frame`` is not a Spark DataFrame."""
    if hasattr(frame, "sparkSession"):
        return
    kind = f"{type(frame).__module__}.{type(frame).__qualname__}".removeprefix("builtins.")
    cure = "pass spark.createDataFrame(it), or write it to Parquet and use from_parquet(path)"
    if isinstance(frame, str | os.PathLike):
        cure = f"for files pass spark.read.parquet(path), or use from_parquet({os.fspath(frame)!r})"
    elif hasattr(frame, "to_spark"):
        cure = "pass its to_spark()"
    elif hasattr(frame, "toDF"):
        cure = "pass its toDF()"
    raise TypeError(f"from_spark takes a DataFrame of Spark, not a {kind}. To convert it, {cure}")
