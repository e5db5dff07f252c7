"""The libraries that MXNet was built with."""

from __future__ import annotations

import mxnet as mx


def cuda_built() -> bool:
    """Return whether this MXNet can use CUDA."""
    return bool(mx.runtime.Features().is_enabled("CUDA"))


def rocm_built() -> bool:
    """Return False: MXNet has no ROCm."""
    return False


def nccl_built() -> int:
    """Return 1 if MXNet was built with NCCL (it does not report the version), else 0."""
    return int(mx.runtime.Features().is_enabled("NCCL"))
