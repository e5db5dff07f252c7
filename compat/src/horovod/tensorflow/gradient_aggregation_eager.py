from farandole.tensorflow import LocalGradientAggregationHelper as LocalGradientAggregationHelperEager

__all__ = ["LocalGradientAggregationHelperEager"]
