"""The libraries that torch was built with."""

from __future__ import annotations

import torch


def cuda_built() -> bool:
    """Return whether torch was built with CUDA."""
    return bool(torch.backends.cuda.is_built())


def rocm_built() -> bool:
    """Return whether torch was built with ROCm."""
    return torch.version.hip is not None


def nccl_built() -> int:
    """Return NCCL's version as one number (2.13.4: 21304); 0 without NCCL."""
    if not (cuda_built() or rocm_built()) or not torch.distributed.is_nccl_available():
        return 0
    version = torch.cuda.nccl.version()
    if isinstance(version, int):
        return version
    major, minor, patch = (*version, 0, 0)[:3]
    return int(major * 10000 + minor * 100 + patch)
