"""Sweeps: searches and policies as pure functions, and a sweep from submission to its best run."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import farandole
from farandole.cli import main
from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder, write_json
from farandole.job.runs.home import RunsHome
from farandole.jobs import attempts
from farandole.jobs.sweeps.policies import Bandit, MedianStopping, Truncation, make_policy
from farandole.jobs.sweeps.space import (
    choice,
    grid,
    loguniform,
    parse_distribution,
    quniform,
    random_search,
    uniform,
)
from farandole.jobs.sweeps.sweep import Sweep, child_spec, load_plan
from tests.kits.messages import mentions
from tests.kits.web import web_server

PROGRAM = """
import argparse, time
import farandole

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--slow", type=float, default=0.0)
options = parser.parse_args()
for step in range(3):
    farandole.log_metric("loss", (options.x - 3) ** 2 + 1 / (step + 1), step=step)
    time.sleep(options.slow)
"""


@pytest.fixture
def script(tmp_path: Path) -> farandole.ScriptRun:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(PROGRAM)
    return farandole.ScriptRun(str(source), "train.py", cores=0.5)


def test_a_grid_has_all_combinations() -> None:
    space = {"a": choice(1, 2), "b": choice(["x", "y"]), "c": choice(0)}
    assert [tuple(values.values()) for values in grid(space)] == [
        (1, "x", 0),
        (1, "y", 0),
        (2, "x", 0),
        (2, "y", 0),
    ]
    with pytest.raises(SettingsError, match="'u'"):
        next(grid({"u": uniform(0, 1)}))


@given(st.integers(0, 1000))
def test_a_random_search_repeats_itself_and_keeps_its_limits(seed: int) -> None:
    space = {
        "u": uniform(-1, 1),
        "l": loguniform(1e-4, 1e-1),
        "q": quniform(0, 1, 0.25),
        "ql": parse_distribution("qloguniform(1,100,10)"),
        "qn": parse_distribution("qnormal(0,1,0.5)"),
        "qe": parse_distribution("qlognormal(0,1,0.5)"),
        "r": parse_distribution("randint(3)"),
    }
    first, second = (list(islice(random_search(space, seed), 5)) for _ in range(2))
    assert first == second
    for values in first:
        assert -1 <= values["u"] <= 1
        assert 1e-4 <= values["l"] <= 1e-1
        assert values["q"] in (0, 0.25, 0.5, 0.75, 1)
        assert values["ql"] in range(0, 101, 10)
        assert values["qn"] % 0.5 == values["qe"] % 0.5 == 0
        assert values["r"] in (0, 1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "uniform(1)",
        "uniform(2,1)",
        "loguniform(0,1)",
        "randint(0)",
        "moon(1)",
        "quniform(0,1,0)",
        "qnormal(0,1,0)",
    ],
)
def test_a_distribution_cannot_be(text: str) -> None:
    with pytest.raises(SettingsError, match=text.split("(")[0]):
        parse_distribution(text)


def ended(policy: object, histories: dict[str, Sequence[float]], maximize: bool) -> list[str]:
    return [run for run in histories if policy.ends(run, histories, maximize)]  # type: ignore[attr-defined]


def test_a_bandit_ends_runs_that_lag_behind() -> None:
    histories = {"best": [0.5, 0.8], "near": [0.75], "far": [0.7]}
    assert ended(Bandit(slack_factor=0.1), histories, True) == ["far"]
    assert ended(Bandit(slack_amount=0.2), histories, True) == []
    assert ended(Bandit(slack_factor=0.1), {"a": [1.0], "b": [1.05], "c": [1.2]}, False) == ["c"]
    assert ended(Bandit(slack_factor=0.1, delay_evaluation=1), histories, True) == []
    assert ended(Bandit(slack_factor=0.1, evaluation_interval=2), histories, True) == []


def test_a_median_policy_ends_runs_below_the_others() -> None:
    histories = {"a": [0.9, 0.9], "b": [0.8, 0.8], "c": [0.1, 0.1]}
    assert ended(MedianStopping(), histories, True) == ["c"]
    assert ended(MedianStopping(), histories, False) == ["a", "b"]
    assert ended(MedianStopping(), {"a": [1.0]}, True) == []


def test_a_truncation_ends_the_worst() -> None:
    histories = {name: [float(place)] for place, name in enumerate("abcdefghij")}
    assert ended(Truncation(20), histories, True) == ["a", "b"]
    assert ended(Truncation(20), histories, False) == ["i", "j"]
    assert ended(Truncation(20, delay_evaluation=1), histories, True) == []


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("luck", {}),
        ("bandit", {}),
        ("bandit", {"slack_factor": 0.1, "slack_amount": 1}),
        ("truncation", {"percentage": 100}),
        ("median", {"evaluation_interval": 0}),
        ("median", {"speed": 1}),
    ],
)
def test_a_policy_cannot_be(kind: str, arguments: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=kind):
        make_policy(kind, arguments)


@pytest.mark.slow
def test_a_sweep_finds_the_best_of_a_grid(home: RunsHome, script: farandole.ScriptRun) -> None:
    sweep = Sweep(script, {"x": choice(1, 3, 4)}, "loss", search="grid", concurrent=2)
    run = farandole.Experiment("sweep").submit(sweep)
    runner_killed = _kill_the_runner_once(home, run)
    run.wait()
    children = run.children()
    assert [child.status() for child in children] == ["completed"] * 3
    assert [child.details()["parameters"] for child in children] == [{"x": x} for x in (1, 3, 4)]
    best = json.loads(Path(run.folder, "outputs", "best.json").read_text())
    assert best["parameters"] == {"x": 3}
    assert best["value"] == pytest.approx(1 / 3)
    assert best["run_id"] == children[1].id
    assert runner_killed


def _kill_the_runner_once(home: RunsHome, run: farandole.Run) -> bool:
    """Kill the sweep's runner after its first child, so that the sweep must continue."""
    deadline = time.monotonic() + 60
    while not run.children():
        assert time.monotonic() < deadline, run.logs()
        time.sleep(0.1)
    folder = home.find(run.id)
    assert folder is not None
    runner = attempts.claimant(folder, 1)
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    return True


def test_a_missing_metric_is_named(home: RunsHome, script: farandole.ScriptRun) -> None:
    sweep = Sweep(script, {"x": choice(1)}, "los", search="grid")
    run = farandole.Experiment("sweep").submit(sweep).wait(check=False, timeout=60)
    assert run.status() == "failed"
    assert mentions(run.details()["cause"], "'los'", "loss")
    assert "/" not in run.facts()["command"]  # no path of this host in a cell's output


@pytest.mark.slow
def test_a_policy_ends_a_hopeless_run(
    home: RunsHome, script: farandole.ScriptRun, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--source", script.source_directory, "--cores", "0.5", "--param", "x=3,30"]
    words += ["--search", "grid", "--metric", "loss", "--concurrent", "2", "--grace-seconds", "1"]
    words += ["--stop-policy", "bandit:0.5", "-f", "--", "python", "train.py", "--slow", "2"]
    assert main(words) == 0
    run = farandole.Run.get(capsys.readouterr().out.split()[0])
    good, hopeless = run.children()
    assert good.status() == "completed"
    assert hopeless.status() == "canceled"


@pytest.mark.slow
def test_a_canceled_sweep_ends_its_runs(home: RunsHome, script: farandole.ScriptRun) -> None:
    slow = farandole.ScriptRun(
        script.source_directory, "train.py", ["--slow", "60"], cores=0.5, grace_seconds=1.0
    )
    run = farandole.Experiment("sweep").submit(Sweep(slow, {"x": choice(1)}, "loss", count=1))
    deadline = time.monotonic() + 60
    while not run.children():
        assert time.monotonic() < deadline, run.logs()
        time.sleep(0.1)
    run.cancel()
    for each in (run, *run.children()):
        assert each.wait(check=False, timeout=60).status() == "canceled"


@pytest.mark.slow
def test_a_time_limit_ends_the_runs_of_a_sweep(home: RunsHome, script: farandole.ScriptRun) -> None:
    slow = farandole.ScriptRun(
        script.source_directory, "train.py", ["--slow", "60"], cores=0.5, grace_seconds=1.0
    )
    sweep = Sweep(slow, {"x": choice(1, 2)}, "loss", count=5, time_limit=4.0)
    run = farandole.Experiment("sweep").submit(sweep)
    run.wait(check=False, timeout=60)
    assert [child.status() for child in run.children()] in (["canceled"], [])  # [] on a busy host


def test_parameters_reach_the_command_in_a_shell(tmp_path: Path) -> None:
    request = farandole.ScriptRun(str(tmp_path), command="cd a && python train.py")
    sweep = Sweep(request, {"x": choice("a b")}, "loss", count=1)
    folder = RunFolder(str(tmp_path))
    write_json(folder.file("sweep.json"), sweep.submission("e").files["sweep.json"])
    words = child_spec(load_plan(folder), "e_1_a", 0, {"x": "a b"}).command
    assert words == ("/bin/sh", "-c", "cd a && python train.py --x 'a b'")


class _Study:
    """The part of an Optuna study that a sweep uses: it tries 2, then 3."""

    def __init__(self) -> None:
        self.told: list[float] = []
        self.asked = 0

    def ask(self) -> _Study:
        self.asked += 1
        return self

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        return float(self.asked + 1)

    def tell(self, trial: object, value: float) -> None:
        self.told.append(value)
        with open(os.environ["TOLD"], "a") as file:
            file.write(f"{value:.3f}\n")


@pytest.mark.slow
def test_a_study_chooses_the_values(
    home: RunsHome,
    script: farandole.ScriptRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import cloudpickle

    cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["_"]))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    sweep = Sweep(script, {"x": uniform(0, 10)}, "loss", search=_Study(), count=2)
    run = farandole.Experiment("sweep").submit(sweep).wait()
    assert [child.details()["parameters"]["x"] for child in run.children()] == [2.0, 3.0]
    assert (tmp_path / "told").read_text() == "1.333\n0.333\n"


@pytest.mark.parametrize(
    "options",
    [
        {"goal": "most"},
        {"space": {}},
        {"concurrent": 0},
        {"search": "luck"},
        {"count": 0},
        {"search": object(), "count": 1},
        {"search": "grid", "space": {"x": uniform(0, 1)}},
    ],
)
def test_a_sweep_cannot_be(
    home: RunsHome, script: farandole.ScriptRun, options: dict[str, object]
) -> None:
    values = {"space": {"x": choice(1)}, "metric": "loss", "count": 1}
    with pytest.raises(SettingsError):
        farandole.Experiment("e").submit(Sweep(script, **{**values, **options}))  # type: ignore[arg-type]
    assert list(home.all_runs()) == []


def test_secret_variables_are_not_in_a_sweeps_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    request = farandole.ScriptRun(str(tmp_path), "train.py", variables={"API_KEY": "hunter2"})
    submission = Sweep(request, {"x": uniform(0, 1)}, "loss", count=1).submission("e")
    assert submission.spec.variables == {"API_KEY": "hunter2"}
    assert "hunter2" not in json.dumps(submission.files)
    assert submission.files["sweep.json"]["base"]["secret_variables"] == ("API_KEY",)


@pytest.mark.slow
def test_credentials_of_inputs_are_not_in_a_sweeps_folders(home: RunsHome, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(
        "import sys, farandole\nfarandole.log_metric('loss', float(open(sys.argv[1]).read()))"
    )
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "data.txt").write_text("0.5")
    with web_server(tmp_path / "web") as url:
        request = farandole.ScriptRun(
            str(source),
            "train.py",
            ["{data}"],
            inputs={"data": f"{url}/data.txt?sig=hunter2"},
            cores=0.5,
        )
        sweep = Sweep(request, {"x": choice(1)}, "loss", count=1)
        run = farandole.Experiment("sweep").submit(sweep).wait()
    best = json.loads(Path(run.folder, "outputs", "best.json").read_text())
    assert best["value"] == 0.5
    files = [each for each in Path(home.runs).rglob("*") if each.is_file()]
    assert [each for each in files if b"hunter2" in each.read_bytes()] == []
