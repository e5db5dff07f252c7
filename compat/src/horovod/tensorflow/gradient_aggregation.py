from farandole.tensorflow import LocalGradientAggregationHelper

__all__ = ["LocalGradientAggregationHelper"]
