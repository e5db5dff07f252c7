"""Which GPU is this rank's."""

from __future__ import annotations

import glob
import os

from farandole.config import Placement
from farandole.spark import get_available_devices


def number(local_rank: int, count: int) -> int:
    """The one that Spark assigned to the rank's task, otherwise that of its number on the host. ``count``: GPUs that
    the process sees."""
    mine = get_available_devices()
    if mine and os.environ.get("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX") != "1" and int(mine[0]) < count:
        return int(mine[0])
    return local_rank % count


def pin(use_gpu: bool) -> None:
    """Show this process one GPU, before a framework looks for them: for frameworks that take all they see."""
    placed, cards = Placement.from_env(), len(glob.glob("/dev/nvidia[0-9]*"))
    if not use_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif cards and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number(max(placed.local_rank, 0), cards))
