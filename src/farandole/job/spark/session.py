"""The Spark session of this process, if any, i.e. its SparkContext.

With Spark Connect there is no context, only a client of a remote server. That server may run in
this process, but its context is not the program's.
"""

from __future__ import annotations

import sys
from typing import Any


def context() -> Any:
    """Return the SparkContext of this process; None without one, and with Spark Connect.

    PySpark is not imported.
    """
    # Connect's client package has no such class.
    known = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    found = None if known is None else known._active_spark_context
    return None if found is None or found._jsc is None or _connects() else found


def started() -> Any:
    """Return ``context()``, after starting the configured session if there is none; None with
    Spark Connect.

    Raises ImportError without PySpark.
    """
    from pyspark.sql import SparkSession

    found = context()
    if found is None and not _connects():
        found = SparkSession.builder.getOrCreate().sparkContext
    return found


def files() -> str:
    """Return the folder of the files passed to ``addFile``; empty without a context."""
    if context() is None:
        return ""
    from pyspark import SparkFiles

    return str(SparkFiles.getRootDirectory())


def _connects() -> bool:
    from pyspark.sql.utils import is_remote

    return bool(is_remote())
