"""Seeds of Keras's generators."""

from __future__ import annotations

import keras

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nmodel = make_model()  # the same weights on all"
    " ranks\nnoise = keras.random.normal([3], seed=augmenting)  # different noise on each"
)
def seed_everything(seed: int) -> keras.random.SeedGenerator:
    """Seed the global generators of Python, numpy, Keras and its backend with the same seed on all
    ranks, so that models begin with the same weights.

    Returns a ``keras.random.SeedGenerator``, seeded per rank, for values that must differ between
    ranks, such as augmentation and noise.

    Layers created without a seed (Dropout) take one from the global generators, so their masks are
    the same on all ranks. For different masks, give them a seed that depends on ``hvd.rank()``.
    """
    own = helpers.seeded(seed)
    keras.utils.set_random_seed(seed)
    # some backends store it in a signed 32-bit integer
    return keras.random.SeedGenerator(own % 2**31)
