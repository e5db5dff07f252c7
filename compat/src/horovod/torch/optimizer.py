from farandole.torch import DistributedOptimizer
from farandole.torch.optimizer import _Combined as _DistributedAdasumOptimizer  # noqa: F401
from farandole.torch.optimizer import _Distributed as _DistributedOptimizer  # noqa: F401
from horovod.common.util import split_list as split_list

__all__ = ["DistributedOptimizer"]
