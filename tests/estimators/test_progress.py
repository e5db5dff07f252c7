"""The best epoch, the end, checkpoints and MLflow: no rank, no framework."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.data import Store
from farandole.errors import DataError, SettingsError
from farandole.estimators import checkpoint, mlflow, progress
from farandole.estimators.progress import Best
from farandole.estimators.spec import Reading, Spec, Watching, direction
from farandole.job.report import training_progress
from tests.kits.messages import mentioning, mentions

NAN = float("nan")


@pytest.mark.parametrize(
    ("watching", "values", "best", "stopped"),
    [
        (Watching("m", patience=2), [3.0, 2.0, 2.5, 2.0], 1, 3),
        (Watching("m", "max", patience=2), [1.0, 3.0, 2.0, 4.0], 3, None),
        (Watching("m", min_delta=0.5, patience=3), [3.0, 2.6, 2.4, 2.2], 2, None),
        (Watching("m", patience=2), [NAN, 5.0, NAN, NAN], 1, 3),
        (Watching("m", patience=1), [NAN, NAN], None, 0),
        (Watching(""), [3.0, 4.0], None, None),
    ],
)
def test_the_best_epoch_and_the_last(
    watching: Watching, values: list[float], best: int | None, stopped: int | None
) -> None:
    found, ended = Best(watching), None
    for epoch, value in enumerate(values):
        found.update(epoch, {"m": value})
        ended = epoch if ended is None and found.stop else ended
    assert (found.epoch, ended) == (best, stopped)


def test_epochs_without_validation_are_not_worse() -> None:
    found = Best(Watching("val_loss", patience=2))
    for epoch in range(4):
        found.update(
            epoch, {"val_loss": 5.0 + epoch} if epoch % 2 else {}, validated=bool(epoch % 2)
        )
        assert found.stop is (epoch == 3)
    assert found.epoch == 1


def test_the_status_line_counts_rows_and_knows_the_last_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_progress, "_progress", training_progress.TrainingProgress())
    counter = training_progress.counter()
    spec = Spec(**dict.fromkeys(Spec._fields))._replace(epochs=4, watching=Watching(), verbose=0)  # type: ignore[arg-type]
    made = progress.Progress(spec, 0, 640, 10)
    made.begin_epoch(0, 3)
    assert training_progress._progress.report(0.0) == {
        "step": 0,
        "rate": 0.0,
        "epoch": 1,
        "epochs": 4,
        "steps": 4,
        "rows": 0.0,
    }
    made.end_epoch(0, {"loss": 0.5}, {"loss": 0.75}, lambda: b"state", lambda: b"weights")
    counter.steps += 4
    made.begin_epoch(1, 3)
    counter.steps += 2
    assert training_progress._progress.report(2.0) == {
        "step": 2,
        "rate": 3.0,
        "epoch": 2,
        "epochs": 4,
        "steps": 4,
        "loss": 0.5,
        "rows": 3.0 * 160,
        "left": 10 / 3,
    }


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(SettingsError, match=mentioning("monitor='accuracy'", "metric")):
        Best(Watching("accuracy")).update(0, {"loss": 1.0})
    assert not Best(Watching("val_loss", required=False)).update(0, {"loss": 1.0})


def test_names_of_metrics_tell_their_direction() -> None:
    rising = [
        "val_acc",
        "sparse_categorical_accuracy",
        "auc_1",
        "f1_score",
        "precision_at_recall",
        "val_kind_recall_2",
    ]
    falling = [
        "loss",
        "val_accuracy_loss",
        "mean_squared_error",
        "mse",
        "val_kl_divergence",
        "crossentropy",
    ]
    assert {direction(name) for name in rising} == {"max"}
    assert {direction(name) for name in falling} == {"min"}
    with pytest.raises(SettingsError, match=mentioning("'score'", "mode='min'", "'max'")):
        direction("score")


def test_the_last_whole_checkpoint_counts(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert checkpoint.last_of(store, "run") is None
    # of callbacks
    others = [f"{store.get_run_path('run')}/{name}" for name in ("best-9.ckpt", "zoo/epoch-9.ckpt")]
    for path in others:
        store.write(path, b"another's")
    for epoch in range(4):
        made = checkpoint.Checkpoint(
            epoch, [{"epoch": epoch}], {"position": 1}, b"state", b"best", 0
        )
        checkpoint.write(store, "run", made)
    kept = [path for path in store.get_checkpoints("run") if path not in others]
    assert [Path(path).name for path in kept] == ["epoch-2.ckpt", "epoch-3.ckpt"]
    assert all(map(store.exists, others))
    assert checkpoint.last_of(store, "run") == made
    Path(kept[1]).write_bytes(b"half of it")
    assert checkpoint.last_of(store, "run") == made._replace(epoch=2, history=[{"epoch": 2}])
    Path(kept[0]).write_bytes(b"")
    with pytest.raises(DataError, match=mentioning("epoch-3.ckpt", "run_id")):
        checkpoint.last_of(store, "run")


def test_an_ended_run_is_not_the_answer_to_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "broadcast_object", lambda value, root: value)
    store = Store.create(str(tmp_path))
    spec = Spec(**dict.fromkeys(Spec._fields))._replace(  # type: ignore[arg-type]
        store=store,
        run_id="run",
        resume=True,
        fingerprint={"rows": 61, "lr": 0.1},
        epochs=2,
        watching=Watching(),
        verbose=0,
        train_reading=Reading(8, 5, 0, 1),
    )
    first = progress.Progress(spec, 0, 61, 5)
    assert first.begin() is None
    for epoch in range(2):
        first.end_epoch(epoch, {"loss": 1.0}, None, lambda: b"state", lambda: b"weights")
    again = progress.Progress(spec, 0, 61, 5)
    found = again.begin()
    assert found is not None
    assert (again.first, found.steps, found.fingerprint) == (2, 10, spec.fingerprint)
    assert not caplog.text
    progress.Progress(spec._replace(epochs=1), 0, 61, 5).begin()
    assert mentions(caplog.text, "'run'", "2", "epochs=1")
    other = spec._replace(fingerprint={"rows": 61, "lr": 0.2})
    with pytest.raises(DataError, match=mentioning("'run'", "lr", "0.1", "0.2")):
        progress.Progress(other, 0, 61, 5).begin()
    longer = progress.Progress(other._replace(epochs=3), 0, 61, 5)
    assert longer.begin() == found
    assert mentions(caplog.text, "checkpoint", "lr", "0.1")
    assert progress.Progress(spec._replace(resume=False), 0, 61, 5).begin() is None


def test_numbers_go_to_the_active_run_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    run: list[Any] = [None]
    fake = SimpleNamespace(
        active_run=lambda: run[0], log_metrics=lambda numbers, step: logged.append((step, numbers))
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    history = [
        {"epoch": 3, "train": {"loss": 2.0, "all_metrics": [[]]}, "validation": {"loss": 1.0}}
    ]
    mlflow.track(history)
    run[0] = "run"
    mlflow.track(history)
    assert logged == [(3, {"loss": 2.0, "val_loss": 1.0})]
