"""Train a binary classifier of chest X-rays (normal, or with signs of pneumonia) on several
processes.

    # images drawn by this program
    farandole run -np 2 python examples/chest_xray.py
    # a folder with train/ and val/ (or test/): NORMAL/ and PNEUMONIA/
    farandole run -np 2 python examples/chest_xray.py --data-folder chest_xray

The learning rate decays per epoch. The model with the best AUC over all processes is saved to
--checkpoint, and training stops when the AUC no longer improves. All processes make the same
decisions.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import farandole.keras as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-folder", type=Path, help="a folder with train/ and val/ or test/")
    parser.add_argument(
        "--images", type=int, default=1200, help="number of images to draw, without --data-folder"
    )
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.001, help="learning rate of one process")
    parser.add_argument(
        "--decay",
        type=float,
        default=0.95,
        help="factor of the learning rate per epoch",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the initial weights, flips and dropout"
    )
    parser.add_argument(
        "--patience", type=int, default=4, help="epochs without a better AUC before training stops"
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("chest_xray.keras"))
    return parser.parse_args()


def draw_chests(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw two dark lungs in brighter tissue, with opacities in every second image. float32 from 0
    to 1.
    """
    random = np.random.default_rng(seed)
    down, across = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    labels = np.arange(count) % 2
    images = np.empty((count, size, size, 1), dtype=np.float32)
    for image, label in zip(images, labels, strict=True):
        shift, scale = random.normal(0, 0.05, 2)
        lungs = np.zeros((size, size))
        for side in (-0.42, 0.42):
            width, height = 0.3 + scale / 2, 0.65 + scale
            lungs += np.exp(
                -((((across - side - shift) / width) ** 2 + ((down - shift) / height) ** 2) ** 2)
            )
        picture = 0.75 - 0.5 * lungs + 0.1 * np.cos(14 * down + 4 * across**2)  # ribs
        for _ in range(random.integers(2, 5) if label else 0):
            y, x, width = (
                random.uniform(-0.5, 0.5),
                random.choice([-0.42, 0.42]) + shift,
                random.uniform(0.08, 0.2),
            )
            picture += random.uniform(0.2, 0.45) * np.exp(
                -((across - x) ** 2 + (down - y) ** 2) / width**2
            )
        image[..., 0] = np.clip(picture + random.normal(0, 0.08, (size, size)), 0, 1)
    return images, labels.astype(np.float32)


def read_folder(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the NORMAL and PNEUMONIA images of one folder in greyscale."""
    images, labels = [], []
    for label, kind in enumerate(("NORMAL", "PNEUMONIA")):
        files = sorted(
            each
            for each in (folder / kind).glob("*")
            if each.suffix.lower() in (".jpeg", ".jpg", ".png")
        )
        if not files:
            raise SystemExit(f"{folder / kind} holds no .jpeg or .png files")
        for each in files:
            picture = keras.utils.load_img(each, color_mode="grayscale", target_size=(size, size))
            images.append(keras.utils.img_to_array(picture, dtype="float32") / 255)
            labels.append(label)
    return np.stack(images), np.asarray(labels, dtype=np.float32)


def load(arguments: argparse.Namespace) -> list[tuple[np.ndarray, np.ndarray]]:
    size, folder = arguments.image_size, arguments.data_folder
    if folder is None:
        return [draw_chests(arguments.images, size, 0), draw_chests(arguments.images // 4, size, 1)]
    validation = next((folder / each for each in ("val", "test") if (folder / each).is_dir()), None)
    if validation is None or not (folder / "train").is_dir():
        raise SystemExit(f"{folder} must contain train/ and val/ (or test/)")
    return [read_folder(folder / "train", size), read_folder(validation, size)]


def network(size: int) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential([keras.Input((size, size, 1)), layers.RandomFlip("horizontal")])
    for channels in (16, 32, 64):
        model.add(layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.8))
        model.add(layers.Activation("relu"))
    for layer in (
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.2),
        layers.Dense(1, activation="sigmoid"),
    ):
        model.add(layer)
    return model


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    hvd.seed_everything(arguments.seed)
    (x, y), validation = load(arguments)
    order = np.random.default_rng(0).permutation(len(x))

    model = network(arguments.image_size)
    rate = arguments.lr * hvd.size()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(rate), shard=True),
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateScheduleCallback(rate, lambda epoch: arguments.decay**epoch),
        keras.callbacks.ModelCheckpoint(
            arguments.checkpoint, monitor="val_auc", mode="max", save_best_only=True
        ),
        keras.callbacks.EarlyStopping(
            "val_auc", mode="max", patience=arguments.patience, restore_best_weights=True
        ),
    ]
    history = model.fit(
        x[order],
        y[order],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=validation,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    ).history

    if hvd.rank() == 0:
        best = keras.models.load_model(arguments.checkpoint)
        _, accuracy, auc = best.evaluate(*validation, verbose=0)
        print(
            f"{hvd.size()} process(es), {len(history['loss'])} epochs, learning rate"
            f" {history['lr'][-1]:.5f} at the end; best model: AUC {auc:.3f}, accuracy"
            f" {accuracy:.1%}"
        )


if __name__ == "__main__":
    main()
