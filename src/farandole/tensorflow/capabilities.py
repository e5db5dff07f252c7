"""The libraries that TensorFlow was built with."""

from __future__ import annotations

import tensorflow as tf


def cuda_built() -> bool:
    """Can this TensorFlow use CUDA?"""
    return bool(tf.test.is_built_with_cuda())


def rocm_built() -> bool:
    """Can this TensorFlow use ROCm?"""
    return bool(tf.test.is_built_with_rocm())


def nccl_built() -> int:
    """0: nothing here goes through NCCL."""
    return 0
