"""Modules of Horovod and sparkdl that are not implemented.

Importing one raises an ImportError with its current substitute.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

_SERVICE = (
    "the tf.data service",
    "let each rank read its own part of the data: dataset.shard(hvd.size(), hvd.rank())",
)
_ESTIMATORS = (
    "the estimators of that module",
    (
        "sparkdl.estimators.HorovodEstimator, horovod.spark.keras, horovod.spark.torch, and"
        " sparkdl.HorovodRunner, which runs any function"
    ),
)
_XGBOOST = ("XGBoost", "xgboost.spark.SparkXGBClassifier and SparkXGBRegressor, of xgboost itself")

# Module -> its purpose, and its current substitute. Submodules are included.
LATER: dict[str, tuple[str, str]] = {
    "horovod.ray": (
        "running on Ray (RayExecutor)",
        "horovodrun and horovod.run start ranks on this machine, and by ssh on others (-H, hosts=)",
    ),
    "horovod.spark.data_loaders": (
        "the data loaders of Spark's Estimators",
        "horovod.data has loaders for plain loops",
    ),
    "horovod.spark.tensorflow": _SERVICE,
    "horovod.tensorflow.data": _SERVICE,
    "sparkdl.xgboost": _XGBOOST,
}
# Horovod's internals, which programs should not use. They will not be implemented.
PRIVATE = {
    "horovod.runner": (
        "common driver elastic gloo_run http js_run mpi_run run_task task task_fn util"
    ),
    "horovod.spark": "conf driver gloo_run mpi_run runner",
    "horovod.spark.common": "cache constants datamodule serialization",
    "horovod.spark.keras": "bare datamodule optimizer remote tensorflow util",
    "horovod.spark.lightning": "datamodule legacy remote util",
    "horovod.spark.torch": "datamodule remote util",
    "horovod.spark.task": "gloo_exec_fn mpirun_exec_fn task_info task_service",
    "horovod.torch": "mpi_lib mpi_lib_impl mpi_lib_v2",
    "horovod.tensorflow": "mpi_lib",
    "horovod.mxnet": "mpi_lib",
}
_PRIVATE = {f"{package}.{name}" for package, names in PRIVATE.items() for name in names.split()}


def missing_module_error(module: str) -> ImportError | None:
    """Return the error of importing ``module``; None for an unknown module."""
    if module in LATER:
        what, today = LATER[module]
        text = (
            f"Extension {module} has not been built: this version of Farandole does not support"
            f" {what}, and no package adds it. Alternative: {today}."
        )
    elif module in _PRIVATE:
        text = (
            f"{module} is internal to Horovod and does not exist in Farandole: use horovod.run,"
            " horovodrun, horovod.spark.run or the module of your framework"
        )
    else:
        return None
    return ImportError(text, name=module)


_OF_SPARKDL = (
    "HorovodEstimator",
    "KerasImageFileEstimator",
    "DeepImageFeaturizer",
    "DeepImagePredictor",
    "KerasImageFileTransformer",
    "KerasTransformer",
    "TFImageTransformer",
    "TFTransformer",
)


def attribute_of_sparkdl(name: str) -> NoReturn:
    """Raise the error for ``sparkdl``'s attributes; Databricks' module once had more than
    HorovodRunner.
    """
    if name in _OF_SPARKDL:
        what, today = _ESTIMATORS
        raise ImportError(
            f"sparkdl.{name}: this version of Farandole does not support {what}."
            f" Alternative: {today}."
        )
    raise AttributeError(f"module 'sparkdl' has no attribute {name!r}")


class _Finder:
    """An import hook that comes last, and is queried only for modules that no other finder
    finds.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if missing_module_error(name) is None else ModuleSpec(name, _Loader())


class _Loader(Loader):
    def exec_module(self, module: ModuleType) -> None:
        error = missing_module_error(module.__name__)
        assert error is not None
        raise error


def install() -> None:
    """Install the import hook once per process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
