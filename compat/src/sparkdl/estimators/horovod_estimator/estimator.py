from farandole.estimators import HorovodEstimator

__all__ = ["HorovodEstimator"]
