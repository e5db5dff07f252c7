from farandole import estimators
from farandole.compat.estimators import by_row
from farandole.estimators import TorchModel

TorchEstimator = by_row(estimators.TorchEstimator, TorchModel, "TorchEstimator", __name__)

__all__ = ["TorchEstimator", "TorchModel"]
