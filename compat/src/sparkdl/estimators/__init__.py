"""Databricks' ``HorovodEstimator``, implemented by Farandole."""

from farandole.estimators import HorovodEstimator

__all__ = ["HorovodEstimator"]
