"""Estimators under Horovod's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from farandole.errors import DataError, SettingsError
from tests.compat.tools import code
from tests.estimators.test_torch import losses, net
from tests.estimators.tools import Pool, frame


def test_names_are_those_of_horovod() -> None:
    assert code(
        "import horovod.spark.torch as t, horovod.spark.common.estimator, horovod.spark.common.params as p\n"
        "from horovod.spark.common.store import Store, LocalStore, HDFSStore\n"
        "from horovod.spark.common.backend import SparkBackend, Backend\n"
        "from horovod.spark.torch.estimator import TorchModel\n"
        "from horovod.spark.lightning.estimator import MIN_PL_VERSION\n"
        "import horovod.spark.keras as k, horovod.spark.lightning as l\n"
        "print(*(each._by_row for each in (k.KerasEstimator, l.TorchEstimator, t.TorchEstimator)), MIN_PL_VERSION)\n"
        "import sys; print(issubclass(t.TorchEstimator, p.EstimatorParams), 'tensorflow' in sys.modules)\n"
        "print(SparkBackend(num_proc=2, verbose=0, prefix_output_with_timestamp=True).num_processes())\n"
        "try:\n    import horovod.spark.common.cache\nexcept ImportError as error:\n    print(error)"
    ).startswith(
        "True True True 2.0.0\nTrue False\n2\nhorovod.spark.common.cache is Horovod's own machinery"
    )  # fmt: skip


def test_data_are_prepared_in_a_store_and_trained_on(spark: Any, tmp_path: Path) -> None:
    from farandole.data import Store
    from farandole.estimators import TorchEstimator
    from farandole.estimators.spark.prepare import clear_training_cache, prepare_data

    rows, store, model = frame(spark), Store.create(str(tmp_path)), net()
    made = TorchEstimator(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss(), store=store,
        feature_cols=["x"], label_cols=["y"], validation=0.3, epochs=2, verbose=0, backend=Pool(1),
        run_id="prepared",
    )  # fmt: skip
    with prepare_data(2, store, rows, ["y"], ["x"], 0.3) as number:
        trained = made.fit_on_parquet(dataset_idx=number)
    with prepare_data(2, store, rows, ["y"], ["x"], 0.3) as again:
        assert again == number
    assert len(losses(trained, "validation")) == 2
    clear_training_cache()
    assert [path for path in tmp_path.rglob("*.parquet") if path.is_file()] == []
    for arguments, says in (
        ((0, store, rows, ["y"], ["x"]), "must both be > 0"),
        ((1, store, rows, [], ["x"]), "empty"),
    ):
        with pytest.raises((DataError, SettingsError), match=says), prepare_data(*arguments):
            pass
