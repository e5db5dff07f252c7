"""Environment files, and how an interpreter differs from them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.job.runs.spec import EnvironmentSpec
from farandole.jobs import environments
from farandole.jobs.environments.files import EnvironmentFile, parse
from farandole.jobs.environments.indexes import uv_variables
from farandole.jobs.environments.installed import Interpreter, differences, interpreter
from tests.kits.messages import mentioning

# The file of a public program for Azure ML, from 2021.
CONDA = """
name: project_environment
channels: [anaconda, conda-forge]
dependencies:
  - python=3.6.2
  - pip
  - cudatoolkit=10.1
  - main::numpy>=1.19,<1.20
  - pytorch=1.6.0=py3.6_cuda
  - pip:
    - tensorflow-gpu==2.2.0
    - horovod==0.19.5
    - sklearn
    - --extra-index-url https://example.org/simple
"""


def read(tmp_path: Path, name: str, text: str) -> EnvironmentFile:
    (tmp_path / name).write_text(text)
    return parse(str(tmp_path / name))


def test_requirements_with_includes_and_options(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("numpy>=1.23  # arrays\n")
    text = "-r base.txt\n--index-url https://example.org/simple\n\ntorch==2.1 ; python_version > '3'\\\n\n# no\nfarandole\n"
    file = read(tmp_path, "requirements.txt", text)
    assert file.requirements == ("numpy>=1.23", "torch==2.1 ; python_version > '3'")
    assert file.options == ("--index-url https://example.org/simple",)
    assert EnvironmentFile.from_json(file.to_json()) == file


def test_pyproject(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\nrequires-python = ">=3.9"\ndependencies = ["numpy", "six>1"]\n'
    file = read(tmp_path, "pyproject.toml", text)
    assert (file.python, file.requirements) == (">=3.9", ("numpy", "six>1"))


def test_conda_file(tmp_path: Path) -> None:
    file = read(tmp_path, "environment.yml", CONDA)
    assert file.python == "==3.6.2.*"
    wanted = ("numpy>=1.19,<1.20", "torch==1.6.0.*", "tensorflow-gpu==2.2.0", "sklearn")
    assert file.requirements == wanted
    assert file.conda == ("cudatoolkit=10.1",)
    assert file.options == ("--extra-index-url https://example.org/simple",)


def test_differences_name_required_and_installed_versions(tmp_path: Path) -> None:
    file = read(tmp_path, "environment.yml", CONDA)
    packages = {"numpy": "1.19.5", "torch": "2.13.0+cpu", "scikit-learn": "1.9"}
    assert differences(file, Interpreter("python", "3.11.7", packages)) == [
        "python==3.6.2.* (running: 3.11.7)",
        "torch==1.6.0.* (installed: 2.13.0+cpu)",
        "tensorflow-gpu==2.2.0 (not installed)",
        "cudatoolkit=10.1 (only conda has it)",
    ]
    text = (
        "numpy\nnot-for-us; python_version < '3'\n./wheel.whl\nsix @ https://example.org/six.whl\n"
    )
    other = read(tmp_path, "requirements.txt", text)
    assert differences(other, Interpreter("python", "3.11.7", {"numpy": "2"})) == [
        "six @ https://example.org/six.whl (not installed)"
    ]
    assert interpreter().packages.get("numpy")


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("environment.yml", "dependencies: 3", "dependencies"),
        ("environment.yml", "a: [", "environment.yml"),
        ("pyproject.toml", "[", "pyproject.toml"),
        ("requirements.txt", "-r gone.txt", "gone.txt"),
        ("requirements.txt", "-r requirements.txt", "requirements.txt"),
        ("requirements.txt", "x @ https://me:pw@example.org/x", "${NAME}"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=mentioning(named)):
        read(tmp_path, name, text)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (EnvironmentSpec("other"), "other"),
        (EnvironmentSpec(file="gone.txt"), "gone.txt"),
        (EnvironmentSpec("build"), "--environment"),
        (EnvironmentSpec("strict"), "--environment"),
        (EnvironmentSpec("strict", "requirements.txt"), "no-such-package==1"),
        (EnvironmentSpec(python="/no/python"), "/no/python"),
        (EnvironmentSpec("build", "requirements.txt", image="x:1"), "x:1"),
    ],
)
def test_wrong_environments(tmp_path: Path, spec: EnvironmentSpec, named: str) -> None:
    (tmp_path / "requirements.txt").write_text("no-such-package==1\n")
    with pytest.raises(SettingsError, match=mentioning(named)):
        environments.check(spec, str(tmp_path))


def test_uv_uses_the_indexes_of_pip(tmp_path: Path) -> None:
    own, named = tmp_path / "pip", tmp_path / "named.conf"
    own.mkdir()
    (own / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n  https://b/simple\n  https://c/simple\n"
    )
    named.write_text("[install]\nfind-links = /wheels /more\n")
    base = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(tmp_path / "none"),
        "XDG_CONFIG_HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(named),
    }
    found = uv_variables(base)
    assert found["UV_DEFAULT_INDEX"] == "https://a/simple"
    assert found["UV_INDEX"] == "https://b/simple https://c/simple"
    assert found["UV_FIND_LINKS"] == "/wheels,/more"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    changed = uv_variables({**base, "PIP_INDEX_URL": "https://d/simple"})
    assert changed["UV_DEFAULT_INDEX"] == "https://d/simple"
    assert "UV_DEFAULT_INDEX" not in uv_variables({**base, "UV_DEFAULT_INDEX": "https://e"})
    assert uv_variables({"PIP_CONFIG_FILE": os.devnull, "PIP_CERT": "/c"}) == {
        "SSL_CERT_FILE": "/c"
    }
