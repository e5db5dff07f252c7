from farandole.estimators import LightningEstimator as TorchEstimator
from farandole.estimators import LightningModel as TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
