"""Handwritten digits with a TensorFlow 2 loop, distributed by five lines.

# digits drawn by this program
farandole run -np 2 python examples/tensorflow2_mnist.py
# a folder with MNIST's IDX files
farandole run -np 2 python examples/tensorflow2_mnist.py --data DIR
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf
from pictures import draw_digits, load_idx

import farandole.tensorflow as hvd
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
    parser.add_argument(
        "--seed", type=int, default=42, help="seed of the initial weights and the order of images"
    )
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="folder where rank 0 saves after every epoch",
    )
    return parser.parse_args()


def make_model() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    hvd.init()  # 1
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    if arguments.data:
        (images, labels), test = load_idx(arguments.data)
    else:
        (images, labels), test = (
            draw_digits(arguments.images, 0),
            draw_digits(arguments.images // 8, 1),
        )
    sampler = DistributedSampler(labels, seed=arguments.seed)  # 2

    hvd.seed_everything(arguments.seed)
    model = make_model()
    optimizer = tf.keras.optimizers.Adam(arguments.lr * hvd.size())  # 3
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    @tf.function(reduce_retracing=True)
    def step(batch: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(batch, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)  # 4
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)  # 5
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        mine = np.fromiter(sampler, dtype=np.int64)
        for begin in range(0, len(mine), arguments.batch_size):
            rows = mine[begin : begin + arguments.batch_size]
            loss = step(images[rows][..., None], labels[rows])
        pictures, targets = (each[hvd.rank() :: hvd.size()] for each in test)
        correct = tf.math.count_nonzero(
            tf.argmax(model(pictures[..., None]), axis=1, output_type=tf.int32) == targets
        )
        accuracy = hvd.allreduce(correct, op=hvd.Sum) / len(test[1])
        loss = hvd.allreduce(loss)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {accuracy:.2%}", flush=True)
            if arguments.checkpoints:
                checkpoint.save(arguments.checkpoints / "model")


if __name__ == "__main__":
    main()
