"""``horovod.spark.keras`` on Farandole: Keras 3 on any backend, and tf_keras."""

from farandole.estimators import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
