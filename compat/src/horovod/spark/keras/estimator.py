from farandole import estimators
from farandole.compat.estimators import by_row
from farandole.estimators import KerasModel

KerasEstimator = by_row(estimators.KerasEstimator, KerasModel, "KerasEstimator", __name__)

__all__ = ["KerasEstimator", "KerasModel"]
