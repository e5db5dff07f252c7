"""Programs written for ``horovod.tensorflow.keras`` and ``horovod.keras`` run unchanged."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.compat.test_migration import ROWS, names
from tests.compat.tools import FARANDOLE, HOROVODRUN, code, program
from tests.keras.backends import BACKENDS, QUICK

PROGRAMS = Path(__file__).parent / "horovod"


def test_a_program_for_tf_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    output = program(HOROVODRUN, "-W", "ignore", PROGRAMS / "tensorflow2_keras_mnist.py", tmp_path)
    found = re.findall(r"^rank \d accuracy ([\d.]+) same (\w+)$", output, re.M)
    assert [same for _, same in found] == ["True", "True"], output
    assert found[0] == found[1]
    assert float(found[0][0]) > 0.8
    assert output.count("finished gradual learning rate warmup to 0.004.") == 1
    assert len(list(tmp_path.iterdir())) == 4


def test_a_program_for_keras_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", QUICK)
    for np, epochs, begin in ((1, "3", "0"), (2, "5", "3")):
        output = program(
            FARANDOLE, "-W", "ignore", PROGRAMS / "keras_advanced.py", tmp_path, epochs, np=np
        )
        found = re.findall(r"^rank \d from (\d) accuracy ([\d.]+) same (\w+)$", output, re.M)
        assert [(each[0], each[2]) for each in found] == [(begin, "True")] * np, output
        assert float(found[0][1]) > 0.8


@pytest.mark.parametrize("backend", BACKENDS[:1])
def test_names(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names of the migration page and of farandole.keras exist under Horovod's names."""
    monkeypatch.setenv("KERAS_BACKEND", backend)
    modules = ["horovod.keras", "horovod._keras"]
    modules += (
        ["horovod.tensorflow.keras", "farandole.tensorflow.keras"]
        if find_spec("tensorflow")
        else []
    )
    known = [(row[0].strip("`"), name) for row in ROWS for name in names(row) if ".keras" in row[0]]
    known = [
        (module, name)
        for module, name in known
        if module.startswith("horovod.keras") or len(modules) > 2
    ]
    assert len(known) > 20
    printed = code(
        f"import importlib, farandole.keras as ours\nfor module, name in {known}:\n   "
        f" getattr(importlib.import_module(module), name)\nfor name in {modules}:\n    module ="
        " importlib.import_module(name)\n    for each in ours.__all__:\n        if getattr(module,"
        " each) is not getattr(ours, each) and each not in ('callbacks', 'elastic'):\n           "
        " print(name, each)\n    for part in ('callbacks', 'elastic'):\n        own ="
        " getattr(ours, part)\n        assert all(getattr(getattr(module, part), each) is"
        " getattr(own, each) for each in own.__all__)\nprint(int(ours.Average), int(ours.Sum),"
        " ours.gloo_built(), ours.rocm_built(), ours.nccl_built() >= 0)"
    )
    assert printed == "0 1 True False True"
