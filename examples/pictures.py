"""Images for the examples: MNIST and similar data from IDX files, or digits drawn by this
module.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

# Which of a digit's seven strokes (top, upper left, upper right, middle, lower left, lower right,
# bottom) are drawn.
STROKES = [
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
]
PLACES = [
    (3, 5, 8, 20),
    (4, 14, 7, 9),
    (4, 14, 19, 21),
    (13, 15, 8, 20),
    (14, 24, 7, 9),
    (14, 24, 19, 21),
    (23, 25, 8, 20),
]

Part = tuple[np.ndarray, np.ndarray]


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read an IDX file: two zero bytes, the type, the number of dimensions, their sizes as 32-bit
    integers, then the values.
    """
    path = next((each for each in (folder / name, folder / f"{name}.gz") if each.exists()), None)
    if path is None:
        raise SystemExit(f"{folder} has neither {name} nor {name}.gz")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = np.frombuffer(content, ">i4", content[3] if len(content) > 3 else 0, 4)
    if content[:3] != b"\0\0\x08" or len(content) != 4 + 4 * len(shape) + shape.prod():
        raise SystemExit(f"{path} is not a complete IDX file of bytes")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def load_idx(folder: Path) -> tuple[Part, Part]:
    """Return images and labels for training and for testing. If the folder has only the test part,
    a tenth of it is used for testing.
    """
    parts = [
        part for part in ("train", "t10k") if any(folder.glob(f"{part}-images-idx3-ubyte*"))
    ] or ["train"]
    found = [
        (
            read_idx(folder, f"{part}-images-idx3-ubyte"),
            read_idx(folder, f"{part}-labels-idx1-ubyte"),
        )
        for part in parts
    ]
    if len(found) == 2:
        return found[0], found[1]
    images, labels = found[0]
    tenth = len(images) // 10
    return (images[:-tenth], labels[:-tenth]), (images[-tenth:], labels[-tenth:])


def draw_digits(count: int, seed: int) -> Part:
    """Draw digits as on a pocket calculator, shifted, with noise: uint8, 28 x 28."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = random.integers(0, 90, (count, 28, 28))
    for image, label in zip(images, labels, strict=True):
        down, right = random.integers(-2, 3, 2)
        for drawn, (top, bottom, left, end) in zip(STROKES[label], PLACES, strict=True):
            if drawn == "1":
                image[top + down : bottom + down, left + right : end + right] += random.integers(
                    90, 165
                )
    return images.astype(np.uint8), labels.astype(np.uint8)
