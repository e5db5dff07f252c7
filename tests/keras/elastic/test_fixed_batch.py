"""``model.fit`` with a fixed global batch: the weights and histories of one process that trains with
the global batch, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import farandole
from tests.keras.backends import QUICK
from tests.keras.elastic.training import await_another

pytestmark = pytest.mark.slow

SHARES, ROWS, BATCH, EPOCHS = 3, 55, 4, 4
STEPS = -(-ROWS // (SHARES * BATCH))  # of an epoch


class Trained(NamedTuple):
    """Weights and history of a rank after a ``fit``, and of a loop over the same global batches."""

    size: int
    weights: list[Any]
    history: dict[str, list[float]]
    expected: list[Any]
    losses: list[float]


def rows_of_arrays(epoch: int, step: int) -> Any:
    from farandole.data import Permutation

    positions = np.arange(step * SHARES * BATCH, (step + 1) * SHARES * BATCH) % ROWS
    return Permutation(ROWS, 0, epoch)(positions)


def rows_in_order(epoch: int, step: int) -> Any:
    return np.arange(step * SHARES * BATCH, (step + 1) * SHARES * BATCH) % ROWS


def rows_of_batches(epoch: int, step: int) -> Any:
    """Each batch has the same number of rows; the last one repeats its own."""
    return _of_batches(range(step * SHARES, (step + 1) * SHARES))


def rows_of_a_generator(epoch: int, step: int) -> Any:
    """An epoch of two steps begins where the previous one has ended."""
    first = (2 * epoch + step) * SHARES
    return _of_batches(range(first, first + SHARES))


def _of_batches(numbers: Sequence[int]) -> Any:
    batches = [np.arange(ROWS)[begin : begin + BATCH] for begin in range(0, ROWS, BATCH)]
    return np.concatenate([np.resize(batches[number % len(batches)], BATCH) for number in numbers])


def _faults_of(base: type, hvd: Any) -> Any:
    """Return a callback that ends process 1 in the second epoch, and keeps the others in the third
    one until another process can join.
    """
    import os

    class Faults(base):  # type: ignore[misc]
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            if self.epoch == 1 and batch == 3 and os.environ["FARANDOLE_MEMBER"] == "1":
                os._exit(1)
            if self.epoch >= 2 and hvd.size() == 2:
                await_another(hvd)

    return Faults()


def trained(kinds: Sequence[str], disturbed: bool = False) -> list[Trained]:
    """Train one model for each kind of data. ``disturbed``: a rank is lost, and another joins,
    during the first.
    """
    import keras

    import farandole.keras as hvd

    hvd.init()
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 6)).astype("float32")
    y = (x[:, :3] ** 2).sum(1, keepdims=True)
    weights = random.uniform(size=ROWS).astype("float32")

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return -(-ROWS // BATCH)

        def __getitem__(self, index: int) -> object:
            rows = slice(index * BATCH, index * BATCH + BATCH)
            return {"a": x[rows]}, y[rows], weights[rows]

    def generated() -> Any:
        while True:
            for index in range(-(-ROWS // BATCH)):
                yield Batches()[index]

    def dataset() -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(({"a": x}, y, weights)).batch(BATCH)

    def loader() -> Any:
        import torch

        whole = torch.utils.data.TensorDataset(*map(torch.tensor, (x, y, weights)))
        return torch.utils.data.DataLoader(whole, batch_size=BATCH)

    data: dict[str, tuple[Callable[[], Any], Callable[[int, int], Any], int]] = {
        "arrays": (
            lambda: {"x": x, "y": y, "sample_weight": weights, "batch_size": BATCH},
            rows_of_arrays,
            STEPS,
        ),
        "batches": (lambda: {"x": Batches(), "shuffle": False}, rows_of_batches, STEPS),
        "generator": (lambda: {"x": generated(), "steps_per_epoch": 2}, rows_of_a_generator, 2),
        "dataset": (lambda: {"x": dataset()}, rows_in_order, STEPS),
        "loader": (lambda: {"x": loader()}, rows_in_order, STEPS),
    }

    def make() -> Any:
        keras.utils.set_random_seed(7)
        inputs = keras.Input([6], name="a")
        hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    found = []
    faults = [_faults_of(keras.callbacks.Callback, hvd)] if disturbed else []
    for kind in kinds:
        arguments, rows_of, steps = data[kind]
        model, plain = make(), make()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.02), shard=True)
        model.compile(optimizer, "mse")
        history = model.fit(epochs=EPOCHS, verbose=0, callbacks=faults, **arguments())
        faults = []
        plain.compile(keras.optimizers.Adam(0.02), "mse")
        losses = []
        for epoch in range(EPOCHS):
            of_epoch = []
            for step in range(steps):
                rows = rows_of(epoch, step)
                plain.reset_metrics()
                of_epoch.append(float(plain.train_on_batch(x[rows], y[rows], weights[rows])))
            losses.append(float(np.mean(of_epoch)))
        found.append(
            Trained(hvd.size(), model.get_weights(), history.history, plain.get_weights(), losses)
        )
    return found


def check(results: list[list[Trained]], size: int) -> None:
    for found in results:
        for one in found:
            assert one.size == size
            for weight, expected in zip(one.weights, one.expected, strict=True):
                assert weight == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_two_ranks_with_three_shares(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank has two shares. All kinds of data, and the mean loss of each epoch."""
    monkeypatch.setenv("KERAS_BACKEND", backend)
    of_backend = {"tensorflow": ("dataset",), "torch": ("loader",)}
    kinds = ("arrays", "batches", "generator", *of_backend.get(backend, ()))
    results = farandole.run(
        trained,
        (kinds,),
        np=2,
        min_np=1,
        max_np=SHARES,
        hosts="localhost:2",
        fixed_global_batch=True,
    )
    check(results, 2)
    for found in results:
        for one in found:
            assert one.history["loss"] == pytest.approx(one.losses, rel=1e-4)


def test_a_rank_is_lost_and_another_joins(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    results = farandole.run(
        trained,
        (("arrays", "batches"), True),
        np=3,
        min_np=2,
        max_np=SHARES,
        fixed_global_batch=True,
    )
    check(results, 3)


@pytest.mark.parametrize("np", [1, SHARES])
def test_one_rank_and_one_per_share(np: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of an elastic job with all shares; a job of a fixed size with one share on each."""
    monkeypatch.setenv("KERAS_BACKEND", QUICK)
    elastic: dict[str, Any] = {"min_np": 1, "max_np": SHARES} if np == 1 else {}
    hosts = f"localhost:{np}"
    results = farandole.run(
        trained, (("arrays",),), np=np, hosts=hosts, fixed_global_batch=True, **elastic
    )
    check(results, np)
    losses = results[0][0].losses
    assert results[0][0].history["loss"] == pytest.approx(losses, rel=1e-4)
