"""The choices of ``tune``, and their use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from farandole.errors import DataError
from farandole.inference import tune
from farandole.inference.tuning import Measured, choose
from tests.kits.messages import mentioning


def test_the_smallest_batch_of_nearly_equal_rates_is_chosen() -> None:
    found = [
        Measured(16, 1, 500),
        Measured(64, 1, 990),
        Measured(256, 1, 1000),
        Measured(256, 2, 1900),
    ]
    assert choose(found) == found[1]
    assert choose([*found, Measured(512, 2, 2200)]) == Measured(512, 2, 2200)


def test_a_sample_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = set()

    def model(x: Any, y: Any) -> Any:
        sizes.add(len(x))
        return x.sum(axis=1) + y

    with monkeypatch.context() as patch:  # the function would be a copy with a separate set
        patch.setattr("cloudpickle.loads", lambda _: model)
        sample = {"x": np.ones((30, 4)), "y": np.arange(30)}
        found = tune(model, sample, returns="double", sizes=(8, 64), threads=(1,), seconds=0.1)
    assert sizes == {8, 64}
    assert {(each.batch_size, each.threads) for each in found.measured} == {(8, 1), (64, 1)}
    assert found.options == {"batch_size": found.batch_size, "threads": 1}
    assert found.conf["spark.task.cpus"] == "1"
    assert str(found).count("<- chosen") == 1


def test_samples_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(DataError, match=mentioning("sample", "rows")):
        tune(np.exp, pa.table({"x": pa.array([], pa.float64())}))
    with pytest.raises(DataError, match="null"):
        tune(np.exp, {"x": [1.0, None]}, returns="double", sizes=(2,), threads=(1,))
