from farandole.core.api.compression import Compressor, NoneCompressor
from farandole.mxnet import Compression

FP16Compressor = Compression.fp16

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
