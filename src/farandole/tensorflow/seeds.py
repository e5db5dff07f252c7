"""Seeds of TensorFlow's generators."""

from __future__ import annotations

import sys

import tensorflow as tf

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nmodel = make_model()  # the same weights on all ranks\n"
    "noise = augmenting.normal([3])  # other noise on each"
)
def seed_everything(seed: int) -> tf.random.Generator:
    """Seed Python's, numpy's, TensorFlow's and Keras's global generators alike on all ranks, so
    that models begin alike; returns a ``tf.random.Generator`` that is this rank's own, for what
    must differ: augmentation, noise.

    Call it outside of ``tf.function``. Dropout draws from the global generators, so its masks are
    alike on all ranks.
    """
    own = helpers.seeded(seed)
    tf.random.set_seed(seed)
    # one that is loaded later draws from Python's
    if "keras" in sys.modules or "tf_keras" in sys.modules:
        tf.keras.utils.set_random_seed(seed)
    return tf.random.Generator.from_seed(own)
