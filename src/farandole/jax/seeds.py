"""Seeds as JAX keys."""

from __future__ import annotations

import jax

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nparams = model.init(jax.random.key(7), x)  # the same"
    " on all ranks\nnoise = jax.random.normal(augmenting, (3,))  # different noise on each"
)
def seed_everything(seed: int) -> jax.Array:
    """Seed the global generators of Python and numpy with the same seed on all ranks. Return this
    rank's key (``jax.random.key``), for values that must differ between ranks: augmentation, noise,
    dropout.

    JAX has no global generator. For equal values, such as parameters, use ``jax.random.key(seed)``,
    which differs from the keys of all ranks.
    """
    return jax.random.key(helpers.seeded(seed))
