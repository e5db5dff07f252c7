from farandole.estimators import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
