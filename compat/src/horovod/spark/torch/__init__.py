"""``horovod.spark.torch`` on Farandole."""

from farandole.estimators import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
