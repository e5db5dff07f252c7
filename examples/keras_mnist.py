"""Handwritten digits with Keras 3, on the backend in KERAS_BACKEND.

    # digits drawn by this program
    KERAS_BACKEND=jax farandole run -np 2 python examples/keras_mnist.py
    # a folder with MNIST's IDX files
    farandole run -np 2 python examples/keras_mnist.py --data DIR

model.fit gets all images, and each process trains on its part of them; all end with the same
network.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from pictures import draw_digits, load_idx

import farandole.keras as hvd


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
    parser.add_argument("--batch-size", type=int, default=64, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one process")
    parser.add_argument(
        "--seed", type=int, default=42, help="seed of the initial weights and the order of images"
    )
    parser.add_argument("--checkpoint", type=Path, help="file for the best model (.keras)")
    return parser.parse_args()


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    if arguments.data:
        train, test = load_idx(arguments.data)
    else:
        train, test = draw_digits(arguments.images, 0), draw_digits(arguments.images // 8, 1)
    (x, y), (test_x, test_y) = [(images[..., None], labels) for images, labels in (train, test)]

    hvd.seed_everything(arguments.seed)
    model = network()
    rate = arguments.lr * hvd.size()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate), shard=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]
    if arguments.checkpoint:
        callbacks.append(keras.callbacks.ModelCheckpoint(arguments.checkpoint, save_best_only=True))
    model.fit(
        x,
        y,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=(test_x, test_y),
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )

    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
    equal = all(np.array_equal(weights, each) for each in hvd.allgather_object(weights))
    if hvd.rank() == 0:
        print(
            f"{keras.backend.backend()}: {hvd.size()} process(es), accuracy {accuracy:.1%}, all"
            f" equal: {equal}"
        )


if __name__ == "__main__":
    main()
