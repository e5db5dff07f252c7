"""Which GPU is this rank's."""

from __future__ import annotations

import glob
import os

from farandole.job.config import Placement
from farandole.spark import get_available_devices


def number(local_rank: int, count: int) -> int:
    """The one that Spark assigned to the rank's task, otherwise that of its number on the host.
    ``count``: GPUs that the process sees.
    """
    mine = get_available_devices()
    if (
        mine
        and os.environ.get("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX") != "1"
        and int(mine[0]) < count
    ):
        return int(mine[0])
    return local_rank % count


def pin(use_gpu: bool) -> None:
    """Show this process one GPU, before a framework looks for them: for frameworks that take all
    they see.
    """
    if not use_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = (
        [str(each) for each in range(len(glob.glob("/dev/nvidia[0-9]*")))]
        if seen is None
        else seen.split(",")
    )
    if not cards or (seen is not None and len(cards) == 1):
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = cards[
        number(max(Placement.from_env().local_rank, 0), len(cards))
    ]
    if get_available_devices():
        os.environ["FARANDOLE_GPUS"] = "0"  # their numbers are those of GPUs that the process sees
