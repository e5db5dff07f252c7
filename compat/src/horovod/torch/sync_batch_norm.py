from farandole.torch import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
