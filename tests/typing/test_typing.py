"""Type checkers see real types through ``import farandole.torch as hvd``, and no errors that are
none.

mypy is run as users run it: in strict mode, with a configuration of its own, reading farandole as
an installed package. basedpyright (``pip install basedpyright``, which brings what it needs) is run
where it is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.api.test_names import recorded

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD = ["torch_program.py", "horovod_program.py", "other_programs.py"]


def every_name() -> str:
    """Return a program that imports every public name of every framework, one a line."""
    lines = []
    for title, names in recorded().items():
        module, _, keras_2 = title.partition(" ")
        if not keras_2:  # the same module
            alias = module.replace(".", "_")
            lines.append(f"import {module}")
            lines += [f"from {module} import {name} as {alias}_{name}" for name in sorted(names)]
            lines += [f"print({module}.{name})" for name in sorted(names)]
    return "\n".join(lines) + "\n"


def check(checker: list[str], folder: Path) -> tuple[set[str], set[str]]:
    """Run a type checker once over all programs, and over every public name. Return where it found
    errors ("file:line"), and where it should.
    """
    for name in (*GOOD, "mistakes.py"):
        (folder / name).write_text((HERE / name).read_text())
    (folder / "every_name.py").write_text(every_name())
    # compat need not be installed
    sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
    env = {**os.environ, "PYTHONPATH": sources}
    done = subprocess.run(
        [*checker, *GOOD, "mistakes.py", "every_name.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=env,
    )
    print(done.stdout, done.stderr)
    lines = (HERE / "mistakes.py").read_text().splitlines()
    expected = {
        f"mistakes.py:{number}" for number, line in enumerate(lines, 1) if line.endswith("# wrong")
    }
    return set(re.findall(r"(\w+\.py:\d+)(?::\d+)*(?: -|:) error", done.stdout)), expected


@pytest.mark.slow
def test_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\nignore_missing_imports = True")
    found, expected = check([sys.executable, "-m", "mypy", "--config-file", "mypy.ini"], tmp_path)
    assert found == expected


@pytest.mark.slow
def test_pyright(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    found, expected = check(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable], tmp_path
    )
    assert found == expected
