"""Programs written for ``horovod.mxnet`` run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.compat.test_migration import ROWS, names
from tests.compat.tools import FARANDOLE, HOROVODRUN, code, program

pytest.importorskip("mxnet", reason="mxnet is not installed")

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("name", "launcher", "arguments"),
    [
        ("mnist.py", HOROVODRUN, []),
        ("mnist.py", FARANDOLE, ["--gradient-predivide-factor", "2"]),
        ("module.py", HOROVODRUN, []),
    ],
)
def test_a_program(name: str, launcher: tuple[str, ...], arguments: list[str]) -> None:
    output = program(launcher, "-W", "ignore", PROGRAMS / name, *arguments)
    found = re.findall(r"^rank \d accuracy ([\d.]+) same (\w+)$", output, re.M)
    assert [same for _, same in found] == ["True", "True"]
    assert all(float(accuracy) > 0.9 for accuracy, _ in found)


def test_every_module_and_name_of_the_table_exists() -> None:
    known = [
        (row[0].strip("`"), name)
        for row in ROWS
        for name in names(row)
        if row[0].startswith("`horovod.mxnet")
    ]
    assert len(known) > 40
    assert (
        code(
            f"import importlib\nfor module, name in {known}:\n   "
            " getattr(importlib.import_module(module), name)\nprint('all')"
        )
        == "all"
    )


def test_horovod_mxnet_has_all_names_of_farandole_mxnet() -> None:
    assert code(
        "import farandole.mxnet as ours, horovod.mxnet as hvd\nfor one, other in ((ours, hvd),"
        " (ours.mpi_ops, hvd.mpi_ops)):\n    print([name for name in one.__all__ if getattr(one,"
        " name) is not getattr(other, name)])\nprint(int(hvd.Average), int(hvd.Sum),"
        " hvd.nccl_built(), hvd.cuda_built(), hvd.gloo_built())"
    ).splitlines() == ["['mpi_ops']", "[]", "0 1 0 False True"]
