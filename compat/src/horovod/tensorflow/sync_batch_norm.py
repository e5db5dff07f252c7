from farandole.tensorflow import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
