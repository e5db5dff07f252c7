"""The Fashion-MNIST lab: ten kinds of clothes, in one process.

    python examples/fashion_mnist.py --epochs 5 --batch-size 512

Images come from the IDX files in --data-dir, or else are downloaded by keras.datasets.
fashion_mnist_distributed.py is the same program on several processes.
"""

import argparse
from pathlib import Path

import keras
from pictures import load_idx


def load(folder: Path | None):
    if folder:
        return load_idx(folder)
    try:
        return keras.datasets.fashion_mnist.load_data()
    except Exception as error:
        raise SystemExit(
            f"Fashion-MNIST cannot be downloaded ({error}): give its folder with --data-dir"
        ) from None


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=512)
parser.add_argument("--data-dir", type=Path, help="with train-images-idx3-ubyte, ... (or .gz)")
arguments = parser.parse_args()

(x_train, y_train), (x_test, y_test) = load(arguments.data_dir)
x_train, x_test = [images[..., None].astype("float32") / 255 for images in (x_train, x_test)]

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.25),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.Adam(0.001)
callbacks = []
verbose = 2

model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=arguments.batch_size,
    epochs=arguments.epochs,
    validation_data=(x_test, y_test),
    callbacks=callbacks,
    verbose=verbose,
)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
if verbose:
    print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}")
