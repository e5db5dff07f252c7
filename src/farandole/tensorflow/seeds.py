"""Seeds of TensorFlow's generators."""

from __future__ import annotations

import sys

import tensorflow as tf

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nmodel = make_model()  # the same weights on all"
    " ranks\nnoise = augmenting.normal([3])  # different noise on each rank"
)
def seed_everything(seed: int) -> tf.random.Generator:
    """Seed the global generators of Python, numpy, TensorFlow and Keras with the same seed on all
    ranks, so that models begin with the same weights.

    Returns a ``tf.random.Generator``, seeded per rank, for values that must differ between ranks,
    such as augmentation and noise.

    Call it outside of ``tf.function``. Dropout draws from the global generators, so its masks are
    the same on all ranks.
    """
    own = helpers.seeded(seed)
    tf.random.set_seed(seed)
    # Keras, if loaded later, takes its seed from Python's generator
    if "keras" in sys.modules or "tf_keras" in sys.modules:
        tf.keras.utils.set_random_seed(seed)
    return tf.random.Generator.from_seed(own)
