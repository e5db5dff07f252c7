"""The device of a rank's model."""

from __future__ import annotations

import torch

import farandole.torch as hvd
from farandole.estimators.trainers.rank import gpu_index


def device_of_rank(use_gpu: bool) -> torch.device:
    """This rank's GPU, if it may have one and there is one."""
    if use_gpu and torch.cuda.is_available():
        return torch.device("cuda", gpu_index(hvd.local_rank(), torch.cuda.device_count()))
    return torch.device("cpu")
