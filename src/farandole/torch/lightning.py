"""``TrackingLogger``: Lightning's metrics and hyperparameters in the run."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farandole.job.config.rank_variables import RUN_VARIABLE
from farandole.job.tracking import log_metrics, log_params

if TYPE_CHECKING or importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch.loggers.logger import Logger
else:
    from pytorch_lightning.loggers.logger import Logger

__all__ = ["TrackingLogger"]


class TrackingLogger(Logger):  # type: ignore[misc]
    """A logger for ``Trainer(logger=TrackingLogger())``. Each rank records its own metrics.

    Without a run it records nothing.
    """

    @property
    def name(self) -> str:
        return "farandole"

    @property
    def version(self) -> str:
        """The id of the run; empty without one."""
        return os.path.basename(os.environ.get(RUN_VARIABLE, ""))

    @property
    def save_dir(self) -> str | None:
        """The outputs of the run, in which Lightning also keeps its checkpoints."""
        run = os.environ.get(RUN_VARIABLE)
        return os.path.join(run, "outputs") if run else None

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if os.environ.get(RUN_VARIABLE):
            log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        if os.environ.get(RUN_VARIABLE) and params is not None:
            log_params(params if isinstance(params, Mapping) else vars(params))
