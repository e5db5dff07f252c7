"""Helpers for MXNet programs on several ranks: seeds and files."""

from __future__ import annotations

import os
from typing import Any

import mxnet as mx
import numpy as np

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nnet.initialize()  # the same weights on all ranks\n"
    "noise = mx.nd.array(augmenting.normal(size=3))  # other noise on each"
)
def seed_everything(seed: int) -> np.random.Generator:
    """Seed Python's, numpy's and MXNet's global generators (on all devices) alike on all ranks, so
    that networks begin alike; returns a ``numpy.random.Generator`` that is this rank's own, for
    what must differ: augmentation, noise.

    MXNet has no generators but the global ones. Dropout draws from them, so its masks are alike on
    all ranks; to have others on each, call ``mx.random.seed`` with another number on each when the
    network is initialised.
    """
    own = helpers.seeded(seed)
    mx.random.seed(seed)
    return np.random.default_rng(own)


@helpers.saving(
    obj=(
        "a gluon Block (its parameters are saved), a gluon Trainer (its states), or what mx.nd.save"
        " takes: NDArrays, in a list or dictionary. Rank 0's counts."
    ),
    path="the file. Its folder must exist.",
    example="hvd.save(net, 'last.params')\nnet.load_parameters('last.params')",
)
def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save by rank 0, whole or not at all: the file is replaced when the new one is on the disk, so
    that a job that ends meanwhile leaves the old one. All ranks call it, and go on when it is
    there.
    """

    def write(place: str) -> None:
        own = getattr(obj, "save_parameters", None) or getattr(obj, "save_states", None)
        if own is None:
            mx.nd.save(place, obj)
        else:
            own(place)

    helpers.saved_by_rank_0(write, path)
