"""The libraries that TensorFlow was built with."""

from __future__ import annotations

import tensorflow as tf


def cuda_built() -> bool:
    """Return whether this TensorFlow can use CUDA."""
    return bool(tf.test.is_built_with_cuda())


def rocm_built() -> bool:
    """Return whether this TensorFlow can use ROCm."""
    return bool(tf.test.is_built_with_rocm())


def nccl_built() -> int:
    """Return 0: TensorFlow's tensors are never exchanged by NCCL."""
    return 0
