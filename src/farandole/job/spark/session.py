"""The Spark session of this process, if it has one: what it runs on is a SparkContext.

With Spark Connect there is none, only a client of a server elsewhere; that server may be in this
process, and its context is not the program's.
"""

from __future__ import annotations

import sys
from typing import Any


def context() -> Any:
    """The SparkContext that runs in this process; None without one, and with Spark Connect. PySpark
    is not imported by it.
    """
    # Connect's client alone has no such class
    known = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    found = None if known is None else known._active_spark_context
    return None if found is None or found._jsc is None or _connects() else found


def started() -> Any:
    """``context()``, of a session that is started as it is configured if there is none; None with
    Spark Connect. ImportError without PySpark.
    """
    from pyspark.sql import SparkSession

    found = context()
    if found is None and not _connects():
        found = SparkSession.builder.getOrCreate().sparkContext
    return found


def files() -> str:
    """The folder of the files given to ``addFile``; empty without a context."""
    if context() is None:
        return ""
    from pyspark import SparkFiles

    return str(SparkFiles.getRootDirectory())


def _connects() -> bool:
    from pyspark.sql.utils import is_remote

    return bool(is_remote())
