"""The problems that strategies and codecs learn: data, a network, and the documented optimizer for
each.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.samples import parts

# Layers before each activation of the net, by the value of ``--model``.
NORMS = {"plain": None, "batchnorm": torch.nn.BatchNorm1d, "layernorm": torch.nn.LayerNorm}
# fraction of the plain network's epochs: a normalized one learns the digits in fewer
NORMALISED_EPOCHS = 0.2
TRAINED, HELD = 8000, 2000  # of MNIST's 10,000 test images, which suffice
# of a step on MNIST, of all ranks: four times the rows of the small digits, in the same number of
# steps
ROWS = 128


class Data(NamedTuple):
    """Samples for training, and held-out samples for testing."""

    x: Any
    y: Any
    held: Any
    labels: Any


class Setting(NamedTuple):
    """Settings of the optimizer, SGD. ``epochs``: for the small digits; ``batch``: rows of all
    ranks in a step.
    """

    rate: float
    momentum: float
    epochs: int
    batch: int = 32

    def __str__(self) -> str:
        rows = f", {self.batch} rows a step" if self.batch not in (USUAL.batch, ROWS) else ""
        return f"{self.kind}, {self.epochs} epochs{rows}"

    @property
    def kind(self) -> str:
        return f"SGD {self.rate:g}" + (f", momentum {self.momentum:g}" if self.momentum else "")

    def for_mnist(self) -> Setting:
        return self._replace(batch=max(ROWS, self.batch))

    def for_normalised(self) -> Setting:
        """Return the setting for a normalized network: fewer epochs, and the usual momentum if a
        codec replaces it.
        """
        return (USUAL if self in (HIGH, PLAIN) else self).shorter()

    def shorter(self) -> Setting:
        return self._replace(epochs=round(self.epochs * NORMALISED_EPOCHS))

    def quick(self) -> Setting:
        return self._replace(epochs=1)

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)


USUAL, PLAIN = Setting(0.1, 0.9, 25), Setting(0.2, 0.0, 60)
# Steps that four ranks add up, in sequence or because their gradients are nearly orthogonal, are
# four times as large. Staleness acts as momentum (Mitliagkas 2016), so asynchronous strategies have
# less momentum; 0.05 with 0.8 would be a quarter.
PUSHED, THIRD = Setting(0.04, 0.8, 25), Setting(0.03, 0.9, 25)
# Values that accumulate for many steps and then arrive together do not combine well with momentum,
# nor does outer momentum with inner momentum; half of it combines with twice the rate. A rate of 1
# without momentum is equivalent to 0.1 with 0.9.
HIGH, OUTER, LIGHT = Setting(1.0, 0.0, 25), Setting(0.2, 0.0, 25), Setting(0.4, 0.0, 25)
# The sign of a gradient of few rows is noise: votes need larger batches, and a rate equal to the
# length of a step.
SIGNS, LARGE = Setting(0.004, 0.0, 60, 300), Setting(0.1, 0.9, 60, 300)
SETTINGS = {
    "onebit": HIGH,
    "randomk": PLAIN,
    "sign": SIGNS,
    "bmuf": PLAIN,
    "diloco": OUTER,
    "diloco:8,momentum=0.5": LIGHT,
    "adasum": THIRD,
    "ps_async": PUSHED,
    "ssp": PUSHED,
}
# The setting of the all-reduce in the comparison, if it differs: the same number of epochs and
# rows.
BASELINES = {PUSHED: USUAL, THIRD: USUAL, HIGH: USUAL, OUTER: USUAL, LIGHT: USUAL, SIGNS: LARGE}


def setting_of(spec: str) -> Setting:
    strategy, codec = parts(spec)
    name = codec if strategy == "allreduce" else strategy
    return SETTINGS.get(name) or SETTINGS.get(name.partition(":")[0], USUAL)


def digits(seed: int) -> Data:
    """Return scikit-learn's digits. The held-out part differs by seed."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    return _split(x[order] / 16, y[order], 1200)


def mnist(folder: Path, seed: int) -> Data:
    """Return the 10,000 test images of MNIST: 8,000 to train on, and 2,000 held out, which differ
    by seed.
    """
    images, labels = (
        np.frombuffer(gzip.decompress((folder / f"t10k-{kind}-ubyte.gz").read_bytes()), np.uint8)
        for kind in ("images-idx3", "labels-idx1")
    )
    order = np.random.default_rng(seed).permutation(TRAINED + HELD)
    return _split(images[16:].reshape(-1, 784)[order] / 255, labels[8:][order], TRAINED)


def _split(x: Any, y: Any, count: int) -> Data:
    images, labels = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    return Data(images[:count], labels[:count], images[count:], labels[count:])


def net(inputs: int, seed: int, width: int, model: str = "plain") -> Any:
    """Return a network of two hidden layers, each with the normalization ``NORMS[model]``."""
    torch.manual_seed(seed)
    norm = NORMS[model]
    layers: list[Any] = []
    for before, after in ((inputs, width), (width, width // 2)):
        layers += [
            torch.nn.Linear(before, after),
            *([norm(after)] if norm else []),
            torch.nn.ReLU(),
        ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width // 2, 10))


def accuracy(model: Any, data: Data) -> float:
    """Return the accuracy in percent in evaluation mode: batch normalization uses its running
    statistics.
    """
    model.eval()
    with torch.no_grad():
        found = float(100 * (model(data.held).argmax(1) == data.labels).float().mean())
    model.train()
    return found
