"""Compression of tensors before they are sent."""

from __future__ import annotations

from typing import Any, ClassVar

from farandole.base.contracts import Binding
from farandole.base.types import DType


class Compressor:
    """A compression that users may subclass: ``compress`` returns the tensor to send and a context
    for ``decompress``.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        raise NotImplementedError("a Compressor must define compress(tensor) -> (tensor, context)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError("a Compressor must define decompress(tensor, context) -> tensor")


Compressing = type[Compressor] | Compressor  # the type of ``compression`` arguments


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    # the public path of this class for pickles, stable and the same in all frameworks
    __module__ = "farandole.numpy"
    __qualname__ = "Compression.none"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Sends floating point tensors as ``dtype``. A framework's ``Compression.fp16`` sets the dtype
    and the binding.
    """

    binding: ClassVar[Binding]
    dtype: ClassVar[DType]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return cls.binding.cast(tensor, cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return cls.binding.cast(tensor, ctx)
