"""What a rank of an estimator runs. Ranks import no pyspark, nor a framework that their training
does not need.
"""

from __future__ import annotations

from collections.abc import Callable

from farandole.estimators.spec import Result, Spec
from farandole.estimators.trainers.device import pin
from farandole.job.report import pickling


def fit(train: Callable[[Spec], Result | None], spec: bytes, one_gpu: bool | None) -> Result | None:
    """The training, and its result on rank 0. (Messages of the job show this name.)

    The spec comes pickled, so that what it holds is checked and packed once. ``one_gpu``: whether
    the process may see one, or none; None: it sees what it sees.
    """
    if one_gpu is not None:
        # before anything in the spec imports a framework, which may look for GPUs then
        pin(one_gpu)
    return train(pickling.unpack(spec))
