"""Helpers for MXNet programs on several ranks: seeds and files."""

from __future__ import annotations

import os
from typing import Any

import mxnet as mx
import numpy as np

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nnet.initialize()  # the same weights on all"
    " ranks\nnoise = mx.nd.array(augmenting.normal(size=3))  # different noise on each"
)
def seed_everything(seed: int) -> np.random.Generator:
    """Seed the global generators of Python, numpy and MXNet (on all devices) with the same seed on
    all ranks, so that networks begin with the same weights.

    Returns a ``numpy.random.Generator``, seeded per rank, for values that must differ between
    ranks, such as augmentation and noise.

    MXNet has only global generators. Dropout draws from them, so its masks are the same on all
    ranks; for different masks, call ``mx.random.seed`` with a different number on each rank after
    the network is initialized.
    """
    own = helpers.seeded(seed)
    mx.random.seed(seed)
    return np.random.default_rng(own)


@helpers.saving(
    obj=(
        "a gluon Block (its parameters are saved), a gluon Trainer (its states), or NDArrays in a"
        " list or dictionary, as for mx.nd.save. Rank 0's is written."
    ),
    path="path of the file. Its folder must exist.",
    example="hvd.save(net, 'last.params')\nnet.load_parameters('last.params')",
)
def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save ``obj`` on rank 0, atomically.

    The new file replaces the old one once it is on disk. All ranks call this function, and return
    when the file is complete.
    """

    def write(place: str) -> None:
        own = getattr(obj, "save_parameters", None) or getattr(obj, "save_states", None)
        if own is None:
            mx.nd.save(place, obj)
        else:
            own(place)

    helpers.saved_by_rank_0(write, path)
