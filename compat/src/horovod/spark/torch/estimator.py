from farandole.estimators import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
