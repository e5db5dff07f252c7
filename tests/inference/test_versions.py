"""Versions of models: files, folders, and pickled objects."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from farandole.inference.models import pack
from farandole.inference.versions import identity, identity_of, version
from tests.keras.backends import QUICK


def test_the_version_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    weights = tmp_path / "variables" / "data"
    weights.write_bytes(b"1")
    os.utime(weights, ns=(5, 5))
    first = version(str(tmp_path))
    assert version(str(tmp_path)) == first
    assert (
        pack(weights.rename(weights.with_suffix(".pt"))).identity
        != pack(weights.with_suffix(".onnx")).identity
    )
    weights.with_suffix(".pt").rename(weights)
    assert version(str(tmp_path)) == first
    os.utime(weights, ns=(6, 6))
    assert version(str(tmp_path)) != first


def function(factor: float) -> Any:
    class Twice:  # cloudpickle draws a number for each such class
        def of(self, x: Any) -> Any:
            return 2 * x * factor

    return lambda x: Twice().of(x)


def test_the_identity_of_functions_does_not_depend_on_class_ids() -> None:
    # a class that is gone has no number
    functions = [function(factor) for factor in (1.0, 1.0, 2.0)]
    one, same, other = map(pack, functions)
    assert one.digest != same.digest
    assert identity(one.content) == identity(same.content)
    assert identity_of(functions[0]) == identity_of(functions[1]) != identity_of(functions[2])
    assert identity(one.content) != identity(other.content)


def archive(**files: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as made:
        for name, content in files.items():
            made.writestr(name.replace("_", "."), content)
    return found.getvalue()


def test_the_time_at_which_keras_saved_a_model_is_no_part_of_it() -> None:
    one = archive(config_json=b'{"shared_object_id": 1, "layers": 2}', metadata_json=b"today")
    assert identity(one) == identity(
        archive(metadata_json=b"tomorrow", config_json=b'{"shared_object_id": 7, "layers": 2}')
    )
    assert identity(one) != identity(archive(config_json=b'{"layers": 3}', metadata_json=b"today"))


PROGRAM = """
import json, sys
from farandole.inference.models import pack
from farandole.inference.versions import identity_of_model

def made(kind, seed):
    if kind == "set":
        names = {"a", "b", "c", "d"}
        return lambda x: x * seed if "a" in names and "p" in {"p", "q", "r", "s"} else -x
    if kind == "keras":
        import keras
        keras.utils.clear_session()
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((3,)), *layers])
    import torch
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(1, 1))
    model.names = {"a", "b", "c", "d"}
    return torch.jit.script(model) if kind == "script" else model

for seed in (1, 2):
    model = made(sys.argv[1], seed)
    print(json.dumps(identity_of_model(model, pack(model).content)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("set", ["variable 'seed'"]),
        ("module", ["weights"]),
        ("script", ["model/data/0", "model/data/1", "model/data/2", "model/data/3"]),
        ("keras", ["model.weights.h5"]),
    ],
)
def test_models_made_by_a_program_are_the_same_each_time(kind: str, changed: list[str]) -> None:
    package = {"set": "numpy", "keras": "keras"}.get(kind, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM, kind],
            env={**os.environ, "PYTHONHASHSEED": seed, "KERAS_BACKEND": QUICK},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-2:]
        for seed in ("1", "2")
    )
    assert first == second
    one, other = map(json.loads, first)
    assert [name for name in one if other[name] != one[name]] == changed
