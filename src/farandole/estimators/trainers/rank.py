"""The function that a rank of an estimator runs, and its GPU. Ranks import neither pyspark nor
frameworks that their training does not need.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable

from farandole.estimators.spec import Result, Spec
from farandole.job.config import Connection, Placement
from farandole.job.report import pickling
from farandole.spark import get_available_devices


def fit(train: Callable[[Spec], Result | None], spec: bytes, one_gpu: bool | None) -> Result | None:
    """Train, and return the result on rank 0. (The job's messages show this function's name.)

    The spec arrives pickled, so that its contents are checked and packed once. ``one_gpu``: whether
    the process sees one GPU or none; None: all visible ones.
    """
    if one_gpu is not None:
        # before anything in the spec imports a framework, which may look for GPUs
        pin_gpu(one_gpu)
    if Connection.from_env().member >= 0:
        # Imported here because most jobs have a fixed size.
        from farandole.estimators.trainers.elastic import train_elastic

        return train_elastic(train, spec)
    return train(pickling.unpack(spec))


def gpu_index(local_rank: int, count: int) -> int:
    """Return the index of the rank's GPU: the one that Spark assigned to its task, otherwise the
    one for its local rank. ``count``: the number of GPUs that the process sees.
    """
    mine = get_available_devices()
    if (
        mine
        and os.environ.get("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX") != "1"
        and int(mine[0]) < count
    ):
        return int(mine[0])
    return local_rank % count


def pin_gpu(use_gpu: bool) -> None:
    """Make one GPU visible to this process before a framework looks for GPUs: some frameworks take
    all visible ones.
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
        gpu_index(max(Placement.from_env().local_rank, 0), len(cards))
    ]
    if get_available_devices():
        os.environ["FARANDOLE_GPUS"] = "0"  # indices count the visible GPUs
