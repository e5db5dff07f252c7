"""An equinox model whose gradients are exchanged in every second step.

farandole run -np 2 python examples/jax_equinox.py
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--passes", type=int, default=2, help="steps per exchange of gradients")
    arguments = parser.parse_args()

    hvd.init()
    model = eqx.nn.MLP(2, "scalar", width_size=32, depth=2, key=jax.random.PRNGKey(hvd.rank()))
    params, static = eqx.partition(model, eqx.is_array)
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optax.adam(0.01), backward_passes_per_step=arguments.passes
    )
    state = optimizer.init(params)

    def loss(params: eqx.Module, x: jax.Array, y: jax.Array) -> jax.Array:
        found = jax.vmap(eqx.combine(params, static))(x)
        return ((found - y) ** 2).mean()

    @jax.jit
    def step(params: eqx.Module, state: tuple, x: jax.Array, y: jax.Array) -> tuple:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(value, name="loss")

    random = np.random.default_rng(hvd.rank())  # different points in each process
    for number in range(arguments.steps):
        x = random.uniform(-1, 1, (64, 2))
        params, state, value = step(
            params, state, jnp.asarray(x, jnp.float32), jnp.sin(3 * x[:, 0]) * x[:, 1]
        )
        if hvd.rank() == 0 and number % 50 in (0, 49):
            print(f"step {number + 1}: loss {float(value):.5f}", flush=True)
    hvd.check_replicas(params)


if __name__ == "__main__":
    main()
