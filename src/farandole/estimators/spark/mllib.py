"""The Spark ML base classes of other modules."""

from __future__ import annotations

from pyspark.ml import Estimator, Model

__all__ = ["Estimator", "Model"]
