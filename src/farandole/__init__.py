"""Farandole: one training function or script, run on N processes as if on one."""

from __future__ import annotations

import sys as _sys
from typing import TYPE_CHECKING, Any

_platform: str = _sys.platform  # a variable, since type checkers on other systems may read on
if _platform != "linux":
    raise ImportError(
        f"farandole runs on Linux only, and this system is {_platform!r}: use WSL 2 on Windows, a"
        " Linux container on macOS",
        name="farandole",
    )

if TYPE_CHECKING:
    from farandole import errors
    from farandole.job.launch.api import Runner, run
    from farandole.job.tracking import (
        log_artifact,
        log_figure,
        log_metric,
        log_metrics,
        log_params,
        log_table,
    )
    from farandole.jobs.experiment import Experiment, FunctionRun, ScriptRun, distributed
    from farandole.jobs.run import Run

    __version__: str

__all__ = [
    "Experiment",
    "FunctionRun",
    "Run",
    "Runner",
    "ScriptRun",
    "__version__",
    "distributed",
    "errors",
    "log_artifact",
    "log_figure",
    "log_metric",
    "log_metrics",
    "log_params",
    "log_table",
    "run",
]
_JOBS = ("Experiment", "FunctionRun", "ScriptRun", "distributed")
_TRACKING = tuple(name for name in __all__ if name.startswith("log_"))


def __getattr__(name: str) -> Any:
    # Imported when first used: `import farandole` loads nothing.
    if name in ("run", "Runner"):
        from farandole.job.launch import api

        value = getattr(api, name)
    elif name in _JOBS:
        from farandole.jobs import experiment

        value = getattr(experiment, name)
    elif name == "Run":
        from farandole.jobs.run import Run as value
    elif name in _TRACKING:
        from farandole.job import tracking

        value = getattr(tracking, name)
    elif name == "errors":
        import farandole.errors as value
    elif name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("farandole")
        except PackageNotFoundError:  # a source tree on PYTHONPATH
            value = "0+unknown"
    else:
        raise AttributeError(f"module 'farandole' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
