"""Seeds of Keras's generators."""

from __future__ import annotations

import keras

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nmodel = make_model()  # the same weights on all ranks\n"
    "noise = keras.random.normal([3], seed=augmenting)  # other noise on each"
)
def seed_everything(seed: int) -> keras.random.SeedGenerator:
    """Seed Python's, numpy's, Keras's and its backend's global generators alike on all ranks, so
    that models begin alike; returns a ``keras.random.SeedGenerator`` that is this rank's own, for
    what must differ: augmentation, noise.

    Layers that are made without a seed (Dropout) take one from the global generators, so their
    masks are alike on all ranks. To have others on each, give them a seed that depends on
    ``hvd.rank()``.
    """
    own = helpers.seeded(seed)
    keras.utils.set_random_seed(seed)
    return keras.random.SeedGenerator(own % 2**31)  # some backends keep it in 32 bits, with a sign
