from farandole.torch import DistributedOptimizer
from horovod.common.util import split_list as split_list

__all__ = ["DistributedOptimizer"]
