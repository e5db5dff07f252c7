from farandole.torch import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
