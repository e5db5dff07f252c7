from farandole.estimators.spark.model import DistributedModel as ModelParams
from farandole.estimators.spark.params import EstimatorParams

__all__ = ["EstimatorParams", "ModelParams"]
