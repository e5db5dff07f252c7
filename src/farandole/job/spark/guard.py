"""PySpark within a rank: calls that would silently misbehave raise errors, and ``SparkFiles``
works.

A rank is a process outside Spark, so PySpark takes it for a driver: ``getOrCreate()`` would start a
private Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

# In a rank of a Spark job: the folder of the task's SparkFiles, or empty.
FILES = "FARANDOLE_SPARK_FILES"
_PATCHED = ("pyspark.context", "pyspark.core.context", "pyspark.files", "pyspark.core.files")
NO_SESSION = (
    "a rank has no Spark session: a SparkContext created here would run a private Spark in this"
    " process, without the cluster's data or accumulators. Use Spark on the driver: before the"
    " job (df.toPandas() for small data; df.write.parquet(path) for large data, so that each rank"
    " reads its part) and after it, with the function's results"
)


def install() -> None:
    """Install the guards in this process without importing PySpark."""
    for name in _PATCHED:
        if name in sys.modules:
            _patch(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """An import hook that finds no modules itself, but patches some as soon as they are
    imported.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _PATCHED:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec: ModuleSpec | None = next(
            (candidate for candidate in found if candidate is not None), None
        )
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _patch(module)

            loader.exec_module = exec_module
        return spec


def _patch(module: ModuleType) -> None:
    context, files = vars(module).get("SparkContext"), vars(module).get("SparkFiles")
    if context is not None:
        context._ensure_initialized = _refuse
    if files is not None and os.environ.get(FILES):
        files._root_directory, files._is_running_on_worker = os.environ[FILES], True


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(NO_SESSION)
