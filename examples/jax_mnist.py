"""Handwritten digits with JAX and optax: the five lines that make a program distributed.

farandole run -np 2 python examples/jax_mnist.py                # digits drawn by this program
farandole run -np 2 python examples/jax_mnist.py --data DIR     # a folder with MNIST's IDX files
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pictures import draw_digits, load_idx

import farandole.jax as hvd
from farandole.data import DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="with train-images-idx3-ubyte, ... (or .gz)"
    )
    parser.add_argument(
        "--images", type=int, default=4000, help="number of images to draw, without --data"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=50, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one process")
    parser.add_argument("--bf16-allreduce", action="store_true", help="send half the bytes")
    return parser.parse_args()


def initial_parameters(seed: int) -> dict:
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> jax.Array:
        return jnp.asarray(
            random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1])), jnp.float32
        )

    return {
        "conv": {"kernel": weights(5, 5, 1, 16), "bias": jnp.zeros(16)},
        "hidden": {"kernel": weights(16 * 12 * 12, 64), "bias": jnp.zeros(64)},
        "out": {"kernel": weights(64, 10), "bias": jnp.zeros(10)},
    }


def logits(params: dict, images: jax.Array) -> jax.Array:
    x = images[..., None].astype(jnp.float32) / 255
    conv, hidden, out = params["conv"], params["hidden"], params["out"]
    x = jax.lax.conv_general_dilated(
        x, conv["kernel"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + conv["bias"]).reshape(len(x), -1)
    return jax.nn.relu(x @ hidden["kernel"] + hidden["bias"]) @ out["kernel"] + out["bias"]


def mean_loss(params: dict, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()


def main() -> None:
    arguments = parse_arguments()
    hvd.init()  # 1
    if arguments.data:
        (images, labels), test = load_idx(arguments.data)
    else:
        (images, labels), test = (
            draw_digits(arguments.images, 0),
            draw_digits(arguments.images // 8, 1),
        )
    sampler = DistributedSampler(labels, seed=42)  # 2

    params = hvd.broadcast_parameters(initial_parameters(hvd.rank()), root_rank=0)  # 3
    compression = hvd.Compression.bf16 if arguments.bf16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optax.adam(arguments.lr * hvd.size()), compression)  # 4
    state = optimizer.init(params)

    @jax.jit
    def step(params: dict, state: tuple, images: jax.Array, labels: jax.Array) -> tuple:
        loss, grads = jax.value_and_grad(mean_loss)(params, images, labels)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    @jax.jit
    def count_correct(params: dict, images: jax.Array, labels: jax.Array) -> jax.Array:
        return (logits(params, images).argmax(1) == labels).sum()

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        mine = np.fromiter(sampler, dtype=np.int64)
        for begin in range(0, len(mine) - arguments.batch_size + 1, arguments.batch_size):
            rows = mine[begin : begin + arguments.batch_size]
            params, state, loss = step(params, state, images[rows], labels[rows])
        part = [each[hvd.rank() :: hvd.size()] for each in test]
        # 5
        total = hvd.allreduce(
            {"loss": loss, "correct": count_correct(params, *part)}, op=hvd.Sum, name="metrics"
        )
        if hvd.rank() == 0:
            mean, accuracy = (
                float(total["loss"]) / hvd.size(),
                float(total["correct"]) / len(test[1]),
            )
            print(f"epoch {epoch + 1}: loss {mean:.4f}, test accuracy {accuracy:.2%}", flush=True)
    hvd.check_replicas(params)


if __name__ == "__main__":
    main()
