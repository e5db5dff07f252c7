"""Seeds, in JAX keys."""

from __future__ import annotations

import jax

from farandole.core.api import helpers


@helpers.seeding(
    "augmenting = hvd.seed_everything(7)\nparams = model.init(jax.random.key(7), x)  # the same on"
    " all ranks\nnoise = jax.random.normal(augmenting, (3,))  # other noise on each"
)
def seed_everything(seed: int) -> jax.Array:
    """Seed the global generators of Python and numpy alike on all ranks; returns a key
    (``jax.random.key``) that is this rank's own, to be split for what must differ: augmentation,
    noise, dropout.

    JAX has no global generator: for what must be alike, parameters say, take
    ``jax.random.key(seed)``, which no rank's own key is.
    """
    return jax.random.key(helpers.seeded(seed))
