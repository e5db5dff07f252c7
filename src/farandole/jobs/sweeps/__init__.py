"""Sweeps: runs of one request with many values of its parameters, and the search for the best."""

from __future__ import annotations

from farandole.jobs.sweeps.policies import Bandit, MedianStopping, NoPolicy, Truncation
from farandole.jobs.sweeps.space import (
    choice,
    lognormal,
    loguniform,
    normal,
    quniform,
    randint,
    uniform,
)
from farandole.jobs.sweeps.sweep import Sweep

__all__ = [
    "Bandit",
    "MedianStopping",
    "NoPolicy",
    "Sweep",
    "Truncation",
    "choice",
    "lognormal",
    "loguniform",
    "normal",
    "quniform",
    "randint",
    "uniform",
]
