"""Estimators under Horovod's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml.param import Param, Params

from farandole.compat.estimators import by_row
from farandole.errors import DataError, SettingsError
from tests.compat.tools import code
from tests.estimators.tools import Pool, frame
from tests.estimators.torch_tools import losses, net
from tests.kits.messages import mentioning

WORDS = ["", "good", "fine", "bad", "awful", "film", "day"]


def test_names_are_those_of_horovod() -> None:
    assert code(
        "import horovod.spark.torch as t, horovod.spark.common.estimator,"
        " horovod.spark.common.params as p\nfrom horovod.spark.common.store import Store,"
        " LocalStore, HDFSStore\nfrom horovod.spark.common.backend import SparkBackend,"
        " Backend\nfrom horovod.spark.torch.estimator import TorchModel\nfrom"
        " horovod.spark.lightning.estimator import MIN_PL_VERSION\nimport horovod.spark.keras as k,"
        " horovod.spark.lightning as l\nprint(*(each._by_row for each in (k.KerasEstimator,"
        " l.TorchEstimator, t.TorchEstimator)), MIN_PL_VERSION)\nimport sys;"
        " print(issubclass(t.TorchEstimator, p.EstimatorParams), 'tensorflow' in"
        " sys.modules)\nprint(SparkBackend(num_proc=2, verbose=0,"
        " prefix_output_with_timestamp=True).num_processes())\ntry:\n    import"
        " horovod.spark.common.cache\nexcept ImportError as error:\n    print(error)"
    ).startswith("True True True 2.0.0\nTrue False\n2\nhorovod.spark.common.cache is internal")


def test_data_are_prepared_in_a_store_and_trained_on(spark: Any, tmp_path: Path) -> None:
    from farandole.data import Store
    from farandole.estimators import TorchEstimator
    from farandole.estimators.spark.prepare import clear_training_cache, prepare_data

    rows, store, model = frame(spark), Store.create(str(tmp_path)), net()
    made = TorchEstimator(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.MSELoss(),
        store=store,
        feature_cols=["x"],
        label_cols=["y"],
        validation=0.3,
        epochs=2,
        verbose=0,
        backend=Pool(1),
        run_id="prepared",
    )
    with prepare_data(2, store, rows, ["y"], ["x"], 0.3) as number:
        trained = made.fit_on_parquet(dataset_idx=number)
    with prepare_data(2, store, rows, ["y"], ["x"], 0.3) as again:
        assert again == number
    assert len(losses(trained, "validation")) == 2
    clear_training_cache()
    assert [path for path in tmp_path.rglob("*.parquet") if path.is_file()] == []
    for arguments, says in (
        ((0, store, rows, ["y"], ["x"]), "> 0"),
        ((1, store, rows, [], ["x"]), "empty"),
    ):
        with (
            pytest.raises((DataError, SettingsError), match=mentioning(says)),
            prepare_data(*arguments),
        ):
            pass


def test_a_store_with_one_folder_holds_the_last_data(spark: Any, tmp_path: Path) -> None:
    """As Horovod's programs create it: the folder is used for any number."""
    from farandole.data import Store
    from farandole.estimators import TorchEstimator
    from farandole.estimators.spark.prepare import clear_training_cache, prepare_data

    rows, store, model = frame(spark), Store.create(str(tmp_path)), net()
    count = rows.count()
    store.get_train_data_path = lambda idx=None: store._train_path
    store.get_val_data_path = lambda idx=None: store._val_path
    options: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.MSELoss(),
        "store": store,
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "epochs": 1,
        "verbose": 0,
        "backend": Pool(1),
    }
    for validation in (None, 0.3, None):  # the last one, as the first, and not what is left of 0.3
        with prepare_data(1, store, rows, ["y"], ["x"], validation):
            trained = TorchEstimator(model=model, validation=validation, **options).fit_on_parquet()
            assert len(losses(trained, "train")) == 1
            assert ("validation" in trained.getHistory()[-1]) == (validation is not None)
            held = spark.read.parquet(store._val_path).count() if validation else 0
            assert spark.read.parquet(store._train_path).count() + held == count
    with pytest.raises(SettingsError, match=mentioning("dataset_idx", "store")):
        TorchEstimator(model=model, validation=0.3, **options).fit_on_parquet()
    theirs = spark.read.parquet(store._train_path)
    with pytest.raises(DataError, match=mentioning("prepare_data")):  # noqa: SIM117
        with prepare_data(1, store, theirs, ["y"], ["x"]):
            pass
    assert spark.read.parquet(store._train_path).count() == count
    clear_training_cache()
    assert [path for path in tmp_path.rglob("*.parquet") if path.is_file()] == []


def test_subclasses_override_the_methods_of_horovods(spark: Any, tmp_path: Path) -> None:
    """As SynapseML's text classifiers do: the model's row function turns a row's text into new
    columns, in training and in predictions.
    """
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from farandole.estimators import LightningEstimator, LightningModel

    def numbers(text: str) -> np.ndarray:
        return np.array([WORDS.index(word) for word in text.split()])

    class Texts(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.layer = torch.nn.Embedding(len(WORDS), 4), torch.nn.Linear(4, 2)

        def forward(self, ids: Any, labels: Any = None) -> Any:
            found = self.layer(self.words(ids).mean(1))
            return found if labels is None else torch.nn.functional.cross_entropy(found, labels)

        def training_step(self, batch: Any, index: int) -> Any:
            assert {name: each.dtype for name, each in batch.items()} == dict.fromkeys(
                ("ids", "labels"), torch.int64
            )
            return self(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    class Classes(Params):
        text_col = Param(Params._dummy(), "text_col", "column of texts")

        def __init__(self) -> None:
            super().__init__()
            self._setDefault(text_col="text")

    class TextModel(LightningModel, Classes):  # type: ignore[misc]
        def __init__(self, **values: Any) -> None:
            super().__init__()
            self._setDefault(
                feature_columns=["text"], label_columns=["label"], outputCols=["output"]
            )
            self._set(**values)

        def get_prediction_fn(self) -> Any:
            name = self.getOrDefault(self.text_col)
            return lambda model, row: model(torch.tensor(numbers(row[name]))[None])

    base: Any = by_row(LightningEstimator, LightningModel, "TorchEstimator", __name__)

    class Classifier(base, Classes):  # type: ignore[misc]
        def __init__(self, words: int, **values: Any) -> None:
            super().__init__()
            self._setDefault(feature_cols=["text"], label_cols=["label"])
            self._set(**values, model=Texts(), transformation_removed_fields=["text", "label"])
            self.setTransformationEditFields(
                [("ids", int, (words,), False), ("labels", int, None, False)]
            )
            self.setTransformationFn(
                lambda row: {
                    **row,
                    "ids": numbers(row["text"]),
                    "labels": torch.tensor(int(row["label"]), dtype=int),
                }
            )

        def _fit(self, dataset: Any) -> Any:
            return super()._fit(dataset)

        def _get_or_create_backend(self) -> Any:
            return Pool(1)

        def get_model_class(self) -> Any:
            return TextModel

        def _get_model_kwargs(
            self, model: Any, history: Any, optimizer: Any, run_id: Any, metadata: Any
        ) -> Any:
            kept = super()._get_model_kwargs(model, history, optimizer, run_id, metadata)
            assert kept["feature_columns"] == ["text"]
            return {
                "model": model,
                "history": history,
                "_metadata": metadata,
                "loss": self.getLoss(),
            }

    rows = [
        (f"{WORDS[1 + place % 4]} {WORDS[5 + place % 2]}", float(place % 4 > 1))
        for place in range(20)
    ]
    texts = spark.createDataFrame(rows, ["text", "label"])
    model = Classifier(2, batch_size=4, epochs=5, verbose=0, random_seed=1).fit(texts)
    assert type(model) is TextModel
    assert losses(model)[-1] < 0.2
    model.write().save(str(tmp_path / "model"))
    read = TextModel.load(str(tmp_path / "model"))
    found = read.transform(texts.coalesce(1))
    assert found.columns == ["text", "label", "output"]
    for row in found.collect():
        with torch.no_grad():
            wanted = model.getModel().eval()(torch.tensor(numbers(row.text))[None])
        np.testing.assert_allclose(row.output.toArray(), wanted[0], rtol=1e-6)
        assert np.argmax(row.output.toArray()) == row.label
