"""Names in Spark's form: columns, and the folder for files of DataFrames."""

from __future__ import annotations

import tempfile
from typing import Any

from farandole.data import paths
from farandole.errors import SettingsError

FOLDER = "spark.farandole.data.dir"  # Spark's setting for the folder


def shared_folder(session: Any) -> str:
    """Return the folder of the session's setting; on one machine, the temporary one; "" if none is
    known.
    """
    folder = session.conf.get(FOLDER, "")
    if not folder and session.conf.get("spark.master", "").startswith("local"):
        folder = tempfile.gettempdir()
    return str(folder)


def write_folder(session: Any) -> str:
    """Return the shared folder. Raises SettingsError if none is known."""
    folder = shared_folder(session)
    if not folder:
        raise SettingsError(
            "from_spark needs a folder that Spark and all ranks reach by the same name. Use"
            " parent='hdfs://...', s3://, abfs://, /Volumes/... or a folder on a shared disk, or"
            f" set {FOLDER} for the session"
        )
    return folder


def spark_url(parent: str) -> str:
    """Return Spark's name of the folder: without a scheme, Spark would use the cluster's default
    file system.
    """
    parent = parent.rstrip("/")
    if parent.startswith("/dbfs/"):
        return "dbfs:" + parent.removeprefix("/dbfs")
    path = paths.local(parent)
    if path is None or parent.startswith(("dbfs:", "/Volumes/")):
        return parent
    return f"file://{path}"


def quote(name: str) -> str:
    """Quote a column name, with any characters, for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
