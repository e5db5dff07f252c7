"""Metrics of a training run in MLflow, if the program has an active MLflow run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from farandole.base.log import logger
from farandole.estimators.progress import flat


def track(history: Sequence[dict[str, Any]]) -> None:
    """Log each epoch's values to the active run, if MLflow is loaded and has one."""
    module = sys.modules.get("mlflow")
    run = None if module is None else module.active_run()
    if module is None or run is None:
        return
    try:
        for record in history:
            module.log_metrics(flat(record), step=record["epoch"])
    except Exception as error:  # an error of the tracking server must not cost the model
        logger.warning("MLflow did not accept the training's metrics: %s", error)
