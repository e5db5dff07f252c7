"""Environments that are built, from wheels of a folder and without any index."""

from __future__ import annotations

import os
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.errors import RunError
from farandole.job.runs.folder import RunFolder, make_private
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import EnvironmentSpec
from farandole.jobs import environments
from farandole.jobs.environments import package
from tests.kits.messages import mentioning


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel of a package with one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a source whose requirements a folder of wheels meets."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        wheel(wheels, "tiny", version)
    for variable, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(variable, value)
    # Importing farandole.numpy needs packages that this folder does not have.
    monkeypatch.setattr(package, "requirements", list)
    monkeypatch.setattr(environments.build, "CHECK", "import farandole")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "requirements.txt").write_text("tiny<2\n")
    return tmp_path / "source"


def folder_of(tmp_path: Path, name: str) -> RunFolder:
    return RunFolder(make_private(str(tmp_path / name)))


def built(source: Path, folder: RunFolder, home: RunsHome) -> environments.PreparedEnvironment:
    spec = environments.with_content(EnvironmentSpec("build", "requirements.txt"), str(source))
    environments.check(spec, str(source))
    return environments.prepare(spec, folder, home)


def output(python: str, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_one_build_serves_all_runs(source: Path, home: RunsHome, tmp_path: Path) -> None:
    folders = [folder_of(tmp_path, f"e_1_{number}") for number in range(3)]
    found = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(built(source, each, home)))
        for each in folders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (python,) = {each.python for each in found}
    assert output(python, "import tiny; print(tiny.version)") == "1.0"
    place = output(python, "import farandole; print(farandole.__file__)")
    assert os.path.samefile(place, package.locations()["farandole"] + "/__init__.py")
    assert [Path(each.file("environment.lock")).read_text() for each in folders] == [
        "tiny==1.0\n"
    ] * 3
    builds = [os.path.exists(each.file("logs", "environment.txt")) for each in folders]
    assert builds.count(True) == 1
    waited = [event["text"] for each in folders for event in each.events()]
    assert sum("waits" in text for text in waited) == 2
    assert found[0].variables["VIRTUAL_ENV"] == os.path.dirname(os.path.dirname(python))

    # A rerun gets the versions of its lock file, although the requirements allow newer ones.
    (source / "requirements.txt").write_text("tiny\n")
    fresh = folder_of(tmp_path, "e_2_a")
    assert output(built(source, fresh, home).python, "import tiny; print(tiny.version)") == "2.0"
    again = folder_of(tmp_path, "e_2_b")
    Path(again.file("environment.lock")).write_text("tiny==1.0\n")
    assert output(built(source, again, home).python, "import tiny; print(tiny.version)") == "1.0"


def test_unused_environments_are_deleted(source: Path, home: RunsHome, tmp_path: Path) -> None:
    python = built(source, folder_of(tmp_path, "e_1_a"), home).python
    program = [python, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(["gc", "--caches"]) == 0
        assert os.path.exists(python)
        process.communicate(b"\n")
    assert main(["gc", "--caches"]) == 0
    assert not os.path.exists(python)
    assert os.path.exists(built(source, folder_of(tmp_path, "e_1_b"), home).python)


def test_a_failed_build_shows_the_end_of_its_log(
    source: Path, home: RunsHome, tmp_path: Path
) -> None:
    (source / "requirements.txt").write_text("no-such-package==7\n")
    folder = folder_of(tmp_path, "e_1_a")
    found = mentioning("requirements.txt", "no-such-package", "logs/environment.txt")
    with pytest.raises(RunError, match=found):
        built(source, folder, home)
    assert "no-such-package" in Path(folder.file("logs", "environment.txt")).read_text()
    (source / "requirements.txt").write_text("tiny\n")
    assert built(source, folder, home).python


def test_a_missing_python_is_named(source: Path, home: RunsHome, tmp_path: Path) -> None:
    (source / "requirements.txt").unlink()
    (source / "requirements.txt").write_text("")
    conda = source / "environment.yml"
    conda.write_text("dependencies: [python=3.6.2]\n")
    spec = EnvironmentSpec("build", "environment.yml")
    spec = environments.with_content(spec, str(source))
    with pytest.raises(RunError, match=mentioning("environment.yml", "3.6.2")):
        environments.prepare(spec, folder_of(tmp_path, "e_1_a"), home)


def test_the_current_environment_is_noted(source: Path, home: RunsHome, tmp_path: Path) -> None:
    spec = environments.with_content(EnvironmentSpec(file="requirements.txt"), str(source))
    folder = folder_of(tmp_path, "e_1_a")
    (note,) = environments.prepare(spec, folder, home).notes
    assert "tiny<2" in note
    assert "numpy==" in Path(folder.file("environment.lock")).read_text()


def test_an_existing_interpreter_gets_farandole(
    source: Path, home: RunsHome, tmp_path: Path
) -> None:
    python = built(source, folder_of(tmp_path, "e_1_a"), home).python
    spec = EnvironmentSpec(file="requirements.txt", python=python)
    spec = environments.with_content(spec, str(source))
    environments.check(spec, str(source))
    found = environments.prepare(spec, folder_of(tmp_path, "e_1_b"), home)
    assert (found.python, found.notes) == (python, ())
    linked, *_ = found.variables["PYTHONPATH"].split(os.pathsep)
    assert os.path.exists(os.path.join(linked, "farandole", "__init__.py"))
