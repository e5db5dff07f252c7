"""``horovod.spark.lightning`` on Farandole: Lightning 2."""

from horovod.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
