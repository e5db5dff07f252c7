from farandole import estimators
from farandole.compat.estimators import by_row
from farandole.estimators import LightningModel as TorchModel

MIN_PL_VERSION = "2.0.0"  # programs compare this with the installed version
TorchEstimator = by_row(estimators.LightningEstimator, TorchModel, "TorchEstimator", __name__)

__all__ = ["MIN_PL_VERSION", "TorchEstimator", "TorchModel"]
