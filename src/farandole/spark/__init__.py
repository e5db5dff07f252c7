"""``HorovodRunner`` and ``run``: run a function in Spark tasks, from a notebook or a script."""

from __future__ import annotations

import os
from typing import Any

from farandole.job.report.messages import log as log_to_driver
from farandole.spark.elastic import run_elastic
from farandole.spark.logs import LoopLog
from farandole.spark.run import run
from farandole.spark.runner import HorovodRunner

__all__ = [
    "HorovodRunner",
    "LogCallback",
    "LoopLog",
    "get_available_devices",
    "log_to_driver",
    "run",
    "run_elastic",
]


def get_available_devices() -> list[str]:
    """Return the indices of this rank's own GPUs, for example for ``torch.cuda.set_device``; empty
    if it has none.

    Call it on a rank. Spark assigned the GPUs to the rank's task
    (``spark.task.resource.gpu.amount``).
    """
    return [number for number in os.environ.get("FARANDOLE_GPUS", "").split(",") if number]


def __getattr__(name: str) -> Any:
    if name == "LogCallback":  # imports Keras only on request
        from farandole.spark.keras import LogCallback

        return LogCallback
    raise AttributeError(f"module 'farandole.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
