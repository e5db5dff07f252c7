"""The functions with which a program records metrics, parameters and files."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farandole
from farandole.job.runs.folder import ATTEMPT_VARIABLE, RUN_VARIABLE, RunFolder
from farandole.job.runs.journal import read, records
from farandole.job.tracking import tracker
from tests.kits.messages import mentioning, mentions


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    folder = RunFolder(str(tmp_path / "e_1_00000000"))
    monkeypatch.setenv(RUN_VARIABLE, folder.path)
    monkeypatch.setenv("FARANDOLE_RANK", "3")
    monkeypatch.setenv(ATTEMPT_VARIABLE, "2")
    tracker._forget()
    yield folder
    if tracker._tracker is not None:
        tracker._tracker.close()
    tracker._forget()


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    tracker._forget()
    yield
    tracker._forget()


def kept(run: RunFolder, kind: str | None = None) -> list[dict[str, Any]]:
    return [each for each in records(run.metrics_of(3)) if each.get("kind") == kind]


def test_metrics_have_steps_and_times(run: RunFolder) -> None:
    farandole.log_metric("loss", 0.5)
    farandole.log_metric("loss", 0.25)
    farandole.log_metrics({"accuracy": 1, "lr": np.float32(0.5)}, step=np.int64(7))
    found = kept(run)
    assert [(each["step"], each["values"]) for each in found] == [
        (0, {"loss": 0.5}),
        (1, {"loss": 0.25}),
        (7, {"accuracy": 1, "lr": 0.5}),
    ]
    assert found[0]["time"] <= found[-1]["time"]
    (process,) = kept(run, "process")
    assert (process["attempt"], process["pid"]) == (2, os.getpid())


@pytest.mark.parametrize(
    "value", [2, True, np.array([[1.5]]), np.float64(0.5), Fraction(1, 2), np.bool_(1)]
)
def test_numbers_of_many_kinds_are_recorded(run: RunFolder, value: Any) -> None:
    farandole.log_metric("x", value)
    assert kept(run)[0]["values"]["x"] == float(np.asarray(value).item())


def test_tensors_of_one_element_are_recorded(run: RunFolder) -> None:
    torch = pytest.importorskip("torch")
    loss = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    farandole.log_metrics({"a": loss, "b": loss.sum()}, step=torch.tensor(4))
    assert kept(run)[0]["values"] == {"a": 1.0, "b": 1.0}
    assert kept(run)[0]["step"] == 4


def test_nan_and_infinity_are_kept(run: RunFolder) -> None:
    farandole.log_metrics({"a": math.nan, "b": math.inf, "c": -math.inf})
    values = kept(run)[0]["values"]
    assert math.isnan(values["a"])
    assert (values["b"], values["c"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("value", ["high", None, [1, 2], np.ones(3), 1j])
def test_values_that_are_no_numbers_are_refused(run: RunFolder, value: Any) -> None:
    with pytest.raises(TypeError, match=mentioning("'x'")):
        farandole.log_metric("x", value)
    with pytest.raises(TypeError, match=mentioning("''")):
        farandole.log_metric("", 1.0)
    with pytest.raises(TypeError, match=mentioning("step=1.5")):
        farandole.log_metric("x", 1.0, step=1.5)  # type: ignore[arg-type]


def test_parameters_are_flat_and_plain(run: RunFolder) -> None:
    farandole.log_params({"lr": np.float32(0.5), "sizes": (1, 2), "adam": {"beta": 0.9}})
    farandole.log_params({"path": Path("data"), "none": None})
    values = {name: value for each in kept(run, "params") for name, value in each["values"].items()}
    assert values == {
        "lr": 0.5,
        "sizes": [1, 2],
        "adam.beta": 0.9,
        "path": "data",
        "none": None,
    }
    with pytest.raises(TypeError, match="vars"):
        farandole.log_params(argparse.Namespace(lr=1))  # type: ignore[arg-type]


def test_tables_of_rows_and_of_columns(run: RunFolder) -> None:
    farandole.log_table("t", [{"a": 1, "b": "x"}, {"a": np.int8(2)}])
    farandole.log_table("t", {"a": [3.0], "b": [None]}, step=1)
    assert [(each["columns"], each["rows"]) for each in kept(run, "table")] == [
        (["a", "b"], [[1, "x"], [2, None]]),
        (["a", "b"], [[3.0, None]]),
    ]
    with pytest.raises(ValueError, match=mentioning("a: 1", "b: 2")):
        farandole.log_table("t", {"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match=mentioning("200,000")):
        farandole.log_table("t", {"a": range(200_000)})
    with pytest.raises(TypeError):
        farandole.log_table("t", [1, 2])  # type: ignore[list-item]


def test_artifacts_are_copied_to_the_outputs(run: RunFolder, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "part").mkdir(parents=True)
    (model / "part" / "a").write_text("12345")
    (model / "b").write_text("1")
    farandole.log_artifact(model)
    farandole.log_artifact(model / "b", name="best/b.txt")
    own = Path(run.folder("outputs", "own")) / "c"
    own.write_text("123")
    farandole.log_artifact(own)
    assert [(each["name"], each["bytes"]) for each in kept(run, "artifact")] == [
        ("model", 6),
        ("best/b.txt", 1),
        ("own/c", 3),
    ]
    outputs = Path(run.file("outputs"))
    found = sorted(str(each.relative_to(outputs)) for each in outputs.rglob("*") if each.is_file())
    assert found == ["best/b.txt", "model/b", "model/part/a", "own/c"]


def test_artifacts_stay_in_the_outputs(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    for name in ("../a", "/a", "x/../../a"):
        with pytest.raises(ValueError, match=mentioning(repr(name))):
            farandole.log_artifact(tmp_path / "a", name=name)
    with pytest.raises(ValueError, match="gone"):
        farandole.log_artifact(tmp_path / "gone")


class Figure:
    """A figure with the method that the libraries share."""

    def savefig(self, path: str) -> None:
        Path(path).write_text("png")


def test_figures_are_written_to_the_outputs(run: RunFolder) -> None:
    farandole.log_figure(Figure(), "curve")
    farandole.log_figure(Figure(), "curve.svg", step=3)
    farandole.log_figure(b"data", "raw")
    assert [each["name"] for each in kept(run, "artifact")] == [
        "figures/curve.png",
        "figures/curve-3.svg",
        "figures/raw.png",
    ]
    assert sorted(os.listdir(run.file("outputs", "figures"))) == [
        "curve-3.svg",
        "curve.png",
        "raw.png",
    ]
    with pytest.raises(TypeError, match="int"):
        farandole.log_figure(1, "one")


def test_files_are_private(run: RunFolder) -> None:
    farandole.log_figure(b"data", "raw")
    for path in (run.metrics_of(3), run.file("outputs", "figures", "raw.png")):
        assert os.stat(path).st_mode & 0o077 == 0


def test_nothing_is_created_outside_a_run(
    no_run: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("1")
    for _ in range(2):
        farandole.log_metric("loss", 0.5)
        farandole.log_params({"lr": 1})
        farandole.log_artifact("a")
        farandole.log_figure(Figure(), "f")
        farandole.log_table("t", [])
    assert os.listdir(tmp_path) == ["a"]
    (message,) = [each.getMessage() for each in caplog.records]
    assert mentions(message, "farandole submit", "--track")
    with pytest.raises(TypeError):
        farandole.log_metric("loss", "high")


def test_threads_share_a_journal(run: RunFolder) -> None:
    def work(name: str) -> None:
        for _ in range(500):
            farandole.log_metric(name, 1.0)

    threads = [threading.Thread(target=work, args=(f"m{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    part = read(run.metrics_of(3))
    assert part.damaged == 0
    found = kept(run)
    for number in range(4):
        steps = [each["step"] for each in found if f"m{number}" in each["values"]]
        assert steps == list(range(500))


def test_a_forked_process_continues_the_journal(run: RunFolder) -> None:
    farandole.log_metric("loss", 1.0)
    child = os.fork()
    if child == 0:
        farandole.log_metric("loss", 2.0)
        os._exit(0)
    os.waitpid(child, 0)
    farandole.log_metric("loss", 3.0)
    assert [each["values"]["loss"] for each in kept(run)] == [1.0, 2.0, 3.0]
    assert [each["pid"] for each in kept(run, "process")] == [os.getpid(), child]


def test_a_full_disk_is_reported_once(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    farandole.log_metric("loss", 1.0)
    write, space = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if not space[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, data[: space[0]])
        space[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            farandole.log_metric("loss", 2.0)
    farandole.log_metric("loss", 3.0)
    (message,) = [each.getMessage() for each in caplog.records]
    assert mentions(message, os.strerror(errno.ENOSPC), run.path)
    assert [each["values"]["loss"] for each in kept(run)] == [1.0, 3.0]


def test_a_folder_that_cannot_be_written_is_reported(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "file"))
    farandole.log_metric("loss", 1.0)
    farandole.log_metric("loss", 1.0)
    (message,) = [each.getMessage() for each in caplog.records]
    assert mentions(message, "3", str(tmp_path / "file"))


def test_ranks_that_are_numbered_again_change_journals(run: RunFolder) -> None:
    farandole.log_metric("loss", 1.0)
    tracker.begin(0)
    farandole.log_metric("loss", 2.0)
    assert [each["values"]["loss"] for each in kept(run)] == [1.0]
    assert [each["values"] for each in records(run.metrics_of(0)) if "values" in each] == [
        {"loss": 2.0}
    ]
