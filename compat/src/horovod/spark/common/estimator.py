from farandole.estimators.spark.estimator import DistributedEstimator as HorovodEstimator
from farandole.estimators.spark.model import DistributedModel as HorovodModel

__all__ = ["HorovodEstimator", "HorovodModel"]
