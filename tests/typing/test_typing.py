"""Type checkers see real types through ``import farandole.torch as hvd``, and no errors that are
none.

mypy is run as users run it: in strict mode, with a configuration of its own, reading farandole as
an installed package. basedpyright (``pip install basedpyright``, which brings what it needs) is run
where it is installed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD = ["torch_program.py", "horovod_program.py", "other_programs.py"]


def check(checker: list[str], folder: Path) -> tuple[set[str], set[str]]:
    """Where errors were found ("file:line"), and where they should be."""
    for name in (*GOOD, "mistakes.py"):
        (folder / name).write_text((HERE / name).read_text())
    # nobody has to install compat
    sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "compat" / "src")])
    env = {**os.environ, "PYTHONPATH": sources}
    done = subprocess.run(
        [*checker, *GOOD, "mistakes.py"], cwd=folder, capture_output=True, text=True, env=env
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
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n")
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


@pytest.mark.parametrize(
    "path",
    [
        "torch",
        "torch/mpi_ops",
        "tensorflow",
        "tensorflow/mpi_ops",
        "tensorflow/keras",
        "keras",
        "jax",
        "mxnet",
        "mxnet/mpi_ops",
    ],
)
def test_what_all_frameworks_have_is_listed_in_each(path: str) -> None:
    """Type checkers read ``__all__`` without running anything, so it is a plain list."""
    from farandole.core.api import basics

    root = ROOT / "src" / "farandole"
    file = root / f"{path}.py" if (root / f"{path}.py").is_file() else root / path / "__init__.py"
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = ast.literal_eval(node.value)
            assert set(basics.__all__) <= set(listed)
            assert len(set(listed)) == len(listed)
            return
    raise AssertionError(f"{file} has no __all__")


def test_keras_under_tensorflow_lists_what_keras_3_and_2_have() -> None:
    """They are read, not run: a process has one of them."""
    from farandole.core.api import basics

    root = HERE.parent.parent / "src" / "farandole"

    def lists(path: str) -> list[set[str]]:
        nodes = ast.walk(ast.parse((root / path / "__init__.py").read_text()))
        lists = [each.value for each in nodes if isinstance(each, (ast.Assign, ast.AugAssign))]
        return [
            {name.value for name in each.elts if isinstance(name, ast.Constant)}
            for each in lists
            if isinstance(each, ast.List)
        ]

    common, of_keras_2, of_keras_3 = lists("tensorflow/keras")
    assert common | of_keras_3 == lists("keras")[0]
    assert common | of_keras_2 == lists("keras/tf_keras")[0] | set(basics.__all__)
