"""A flax model with gradients and batch normalization over all processes.

farandole run -np 2 python examples/jax_flax.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from pictures import draw_digits

import farandole.jax as hvd


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 16, (5, 5), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.out = nnx.Linear(16 * 14 * 14, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.conv(images[..., None] / 255)))
        return self.out(x.reshape(len(x), -1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=50, help="images per process and step")
    arguments = parser.parse_args()

    hvd.init()
    images, labels = draw_digits(2000, 0)
    # this process's part
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

    model = Network(nnx.Rngs(hvd.rank()))
    nnx.update(model, hvd.broadcast_parameters(nnx.state(model), root_rank=0))  # equal weights
    tx = hvd.DistributedOptimizer(optax.adam(0.001 * hvd.size()))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(
        model: Network, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array
    ) -> jax.Array:
        def loss(model: Network) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        # the mean over all processes' images
        statistics = nnx.state(model, nnx.BatchStat)
        nnx.update(model, hvd.allreduce(statistics, name="statistics"))
        return hvd.allreduce(value, name="loss")

    for epoch in range(arguments.epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for begin in range(0, len(order) - arguments.batch_size + 1, arguments.batch_size):
            rows = order[begin : begin + arguments.batch_size]
            value = step(
                model, optimizer, jnp.asarray(images[rows], jnp.float32), jnp.asarray(labels[rows])
            )
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(value):.4f}", flush=True)
    hvd.check_replicas(nnx.state(model))
    if hvd.rank() == 0:
        print("all processes have the same model", flush=True)


if __name__ == "__main__":
    main()
