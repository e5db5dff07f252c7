"""The comparison of two recorded runs, read from their folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.job.runs.states import RunState
from farandole.job.tracking.tracker import FINDING, SYSTEM, TRAINING, Tracker
from farandole.jobs.comparison import compare
from farandole.jobs.submission import write_request
from tests.kits.messages import mentioning
from tests.kits.written_runs import written_run

UP, DOWN = [1.0, 2.0], [2.0, 1.0]


def recorded(home: RunsHome, number: int, ranks: int, source: str, **facts: object) -> RunFolder:
    """Return a completed run of ``ranks`` with a snapshot, metrics and automatic records."""
    folder = RunFolder(os.path.join(home.runs, "chest", f"chest_{number}_00000000"))
    folder.folder("snapshot")
    Path(folder.file("snapshot", "train.py")).write_text(source)
    Path(folder.file("environment.lock")).write_text(f"numpy==2.{number}\nsix==1.0  # why\n")
    spec = RunSpec("chest", command=("python", "train.py"), resources=Resources(ranks))
    write_request(folder, spec, home, source="")
    folder.record("state", state=RunState.RUNNING.value, attempt=1)
    epochs = int(str(facts["epochs"]))
    for rank in range(ranks):
        tracker = Tracker(folder, rank)
        tracker.record(TRAINING, values={"data": "aa", "batch_size": 32, "learning_rate": 0.1})
        for epoch in range(epochs):
            tracker.scalars({"val_auc": 0.6 + 0.05 * epoch, "loss": 1 / (1 + epoch)}, epoch)
        totals = {"training/steps": 30.0 * epochs, "training/samples": 900.0 * epochs}
        system = {"system/host_cpu_cores": 5.5, "system/cpu_cores": 1.0}
        values = {**totals, **system, "training/epochs": epochs, "training/exchange_bytes": 0.0}
        tracker.record(SYSTEM, step=1, values=values)
        if facts.get("code"):
            tracker.record(FINDING, code=facts["code"], text="unwrapped")
        tracker.close()
    folder.finish(RunState.COMPLETED, exit_code=0)
    return folder


@pytest.fixture
def runs(home: RunsHome) -> list[RunFolder]:
    return [
        recorded(home, 1, 1, "epochs = 8\nfit()\n", epochs=8),
        recorded(home, 2, 4, "epochs = 8 // size()\nfit()\n", epochs=2, code="FAR012"),
    ]


def test_a_comparison_reads_the_folders(runs: list[RunFolder]) -> None:
    found = compare(runs)
    single, distributed = found.measures
    assert (single.samples, single.samples_per_model, single.epochs) == (7200, 7200, 8)
    assert (distributed.samples, distributed.samples_per_model) == (7200, 1800)
    assert (distributed.exchanges, distributed.same_data) == (False, True)
    assert found.equal is not None
    assert found.equal.metric == "val_auc"
    assert found.equal.value == pytest.approx(0.65)
    assert found.equal.steps == (1, 1)
    assert [each.code.value for each in found.unfair][:3] == [
        "no-gradients-exchanged",
        "same-data-on-all-ranks",
        "samples",
    ]
    assert (single.other_load, distributed.other_load) == (4.5, 1.5)
    assert found.environment == {"numpy": ["2.1", "2.2"]}
    (source,) = found.source
    assert source["path"] == "train.py"
    assert source["runs"] == ["same", "changed"]
    assert "+epochs = 8 // size()" in source["diff"]
    assert found.differences["ranks"] == [1, 4]


def test_a_comparison_is_json_data(runs: list[RunFolder]) -> None:
    data = json.loads(json.dumps(compare(runs).to_json(), default=str, allow_nan=False))
    assert data["runs"] == [folder.run_id for folder in runs]
    assert data["curves"]["val_auc"][1]["step"] == [0, 1]
    assert data["measures"][1]["ranks"] == 4
    assert data["equal_value"]["goal"] == "maximize"


def test_another_metric_and_goal(runs: list[RunFolder]) -> None:
    found = compare(runs, metric="loss", goal="minimize").equal
    assert found is not None
    assert found.value == 0.5
    with pytest.raises(SettingsError, match="val_auc"):
        compare(runs, metric="val_aux")
    with pytest.raises(SettingsError, match="minimize"):
        compare(runs, goal="down")


def test_metrics_of_late_names_are_compared(home: RunsHome) -> None:
    names = [*(f"a{number:02}" for number in range(30)), "quality", "val_loss"]
    runs = [written_run(home, metrics=dict.fromkeys(names, values)) for values in (UP, DOWN)]
    found = compare(runs)
    assert found.equal is not None
    assert (found.equal.metric, found.equal.value) == ("val_loss", 1.0)
    assert len(found.curves) == 24
    chosen = compare(runs, metric="quality", goal="maximize")
    assert chosen.equal is not None
    assert chosen.equal.metric in chosen.curves
    with pytest.raises(SettingsError, match=mentioning("'quality'", "--goal", "maximize")):
        compare(runs, metric="quality")


def test_the_command_prints_it(runs: list[RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    names = [folder.run_id for folder in runs]
    assert main(["compare", *names, "--diff"]) == 0
    printed = capsys.readouterr().out
    for value in ("7,200", "1,800", "a quarter", "FAR012", "+epochs = 8 // size()"):
        assert value in printed
    assert max(map(len, printed.splitlines())) < 130


def test_files_of_one_run_and_links(runs: list[RunFolder]) -> None:
    Path(runs[0].file("snapshot", "old.bin")).write_bytes(b"\xff\x00")
    Path(runs[1].file("snapshot", "new.py")).write_text("import os\n" * 500)
    os.symlink("/etc/passwd", runs[1].file("snapshot", "link.py"))
    found = {each["path"]: each for each in compare(runs).source}
    assert found["old.bin"]["runs"] == ["same", "missing"]
    assert found["old.bin"]["diff"] == []
    assert found["new.py"]["runs"] == ["same", "added"]
    assert found["new.py"]["truncated"]
    assert found["link.py"]["diff"] == []


def test_runs_that_have_recorded_nothing(home: RunsHome, runs: list[RunFolder]) -> None:
    waiting = RunFolder(os.path.join(home.runs, "chest", "chest_3_00000000"))
    waiting.folder("metrics")
    write_request(waiting, RunSpec("chest", command=("python", "train.py")), home, source="")
    found = compare([runs[0], waiting])
    assert found.equal is None
    assert found.source == []
    assert found.curves == {}
    assert [each.code.value for each in found.unfair] == ["end"]
    assert (found.measures[1].samples, found.measures[1].seconds) == (None, None)
    assert waiting.run_id in repr(found)
    json.dumps(found.to_json(), default=str, allow_nan=False)


def test_a_learning_rate_of_the_command_line(home: RunsHome) -> None:
    folder = RunFolder(os.path.join(home.runs, "chest", "chest_4_00000000"))
    folder.folder("metrics")
    command = ("python", "train.py", "--learning-rate", "0.5", "--batch-size=64", "--seed", "3")
    data = ("--data", "/secret/place/chests.npz")
    write_request(
        folder, RunSpec("chest", command=(*command[:2], *data, *command[2:])), home, source=""
    )
    other = RunFolder(os.path.join(home.runs, "chest", "chest_5_00000000"))
    other.folder("metrics")
    write_request(other, RunSpec("chest", command=command), home, source="")
    found = compare([folder, other])
    first = found.measures[0]
    assert (first.learning_rate, first.batch, first.seed) == (0.5, 64, "3")
    saved = repr(found)
    assert "/secret/place" not in saved
    assert "chests.npz" in saved
