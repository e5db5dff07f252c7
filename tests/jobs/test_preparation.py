"""Runs whose inputs, environments and outputs differ from a plain run's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import farandole
from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import EnvironmentSpec, InputSpec, RunSpec
from farandole.jobs import attempts, outputs
from farandole.jobs.commands.rerun import rerun
from farandole.jobs.submission import Submission, submit
from tests.kits.jobs import wait_for_end
from tests.kits.messages import mentioning, mentions

PROGRAM = """
import os, sys, tempfile
print(sys.executable, open(sys.argv[1]).read(), os.environ["data"] == sys.argv[1])
open("outputs/copy", "w").write(open(sys.argv[1]).read())
if len(sys.argv) > 2:
    import time
    time.sleep(60)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "data.csv").write_text("1,2")
    return folder


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return an interpreter that has this one's packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    found = tmp_path / "venv" / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    place = subprocess.run([found, "-c", code], capture_output=True, text=True, check=True)
    Path(place.stdout.strip(), "all.pth").write_text(sysconfig.get_path("purelib"))
    return str(found)


def text_of(folder: RunFolder, rank: int = 0) -> str:
    return Path(folder.log_of(rank)).read_text()


@pytest.mark.slow
def test_a_script_and_a_function_in_another_interpreter(
    home: RunsHome, source: Path, python: str
) -> None:
    environment = EnvironmentSpec(python=python)
    spec = RunSpec(
        "e",
        ("python", "train.py", "{data}"),
        environment=environment,
        inputs=(InputSpec("data", f"file://{source}/data.csv"),),
    )
    folder = submit(Submission(spec, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed", folder.end()
    assert text_of(folder).split() == [python, "1,2", "True"]
    again = rerun(folder, home)
    assert wait_for_end(again)["state"] == "completed", again.end()
    assert again.submitted()["snapshot"] == folder.submitted()["snapshot"]
    shell = RunSpec(
        "e",
        ("/bin/sh", "-c", "python -c 'import sys; print(sys.executable)'"),
        environment=environment,
    )
    found = submit(Submission(shell, str(source)), home)
    assert wait_for_end(found)["state"] == "completed", found.end()
    assert text_of(found).strip() == python

    def where() -> str:
        return sys.executable

    run = farandole.Experiment("f").submit(farandole.FunctionRun(where, environment=environment))
    assert run.wait(timeout=60).results() == [python]


def test_outputs_of_a_killed_run_are_listed(home: RunsHome, source: Path) -> None:
    spec = RunSpec(
        "e",
        ("python", "train.py", "{data}", "wait"),
        inputs=(InputSpec("data", str(source / "data.csv")),),
    )
    folder = submit(Submission(spec, str(source)), home)
    deadline = time.monotonic() + 30
    while not os.path.exists(folder.file("outputs", "copy")) and time.monotonic() < deadline:
        time.sleep(0.02)
    runner = attempts.claimant(folder, 1)
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    while not os.path.exists(folder.file("artifacts.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    folder.request("cancel")
    wait_for_end(folder)
    outputs.collect(folder)
    assert "copy" in Path(folder.file("artifacts.json")).read_text()


def test_credentials_of_an_input_are_not_in_the_folder(home: RunsHome, source: Path) -> None:
    url = "http://127.0.0.1:9/data.csv?sig=hunter2"
    spec = RunSpec("e", ("python", "train.py", "{data}"), inputs=(InputSpec("data", url),))
    (source / ".env").write_text("PASSWORD=hunter2")
    folder = submit(Submission(spec, str(source)), home)
    assert "data.csv" in str(wait_for_end(folder)["cause"])
    files = [Path(where, name) for where, _, names in os.walk(folder.path) for name in names]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    assert any(".env" in event.get("text", "") for event in folder.events())


def test_secret_variables_stay_outside_the_folder(
    home: RunsHome, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os; token = os.environ['MY_TOKEN'];"
        " print(len(token), os.environ['A'], file=open('outputs/n', 'w'))"
    )
    variables = {"MY_TOKEN": "hunter2", "A": "b", "TOKENIZERS_PARALLELISM": "false"}
    spec = RunSpec("e", ("python", "-c", code), variables=variables)
    folder = submit(Submission(spec, str(source)), home)
    assert wait_for_end(folder)["state"] == "completed", folder.end()
    assert Path(folder.file("outputs", "n")).read_text() == "7 b\n"
    assert folder.spec().secret_variables == ("MY_TOKEN",)
    assert folder.spec().variables == {"A": "b", "TOKENIZERS_PARALLELISM": "false"}
    files = [Path(where, name) for where, _, names in os.walk(folder.path) for name in names]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    with pytest.raises(SettingsError, match=mentioning("MY_TOKEN")):
        rerun(folder, home)
    monkeypatch.setenv("MY_TOKEN", "four")
    again = rerun(folder, home)
    assert wait_for_end(again)["state"] == "completed", again.end()
    assert Path(again.file("outputs", "n")).read_text() == "4 b\n"


def test_files_that_are_not_kept_are_named(home: RunsHome, source: Path) -> None:
    code = (
        "import os, tempfile; open('model.pt', 'w'); open('outputs/weights', 'w');"
        " open('train.py', 'a'); tempfile.mkstemp()"
    )
    folder = submit(Submission(RunSpec("e", ("python", "-c", code)), str(source)), home)
    assert wait_for_end(folder)["state"] == "completed", folder.end()
    texts = [event["text"] for event in folder.events() if event["event"] == "warning"]
    assert [mentions(text, "model.pt") for text in texts] == [True, False]
    assert mentions(texts[1], "TMPDIR", "1 file")
    assert not any(mentions(text, name) for text in texts for name in ("weights", "train.py"))
