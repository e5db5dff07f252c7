"""``horovod.spark.keras`` on Farandole: Keras 3 on any backend, and tf_keras."""

from horovod.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
