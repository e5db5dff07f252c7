"""The Spark ML classes that other modules derive from."""

from __future__ import annotations

from pyspark.ml import Estimator, Model

__all__ = ["Estimator", "Model"]
