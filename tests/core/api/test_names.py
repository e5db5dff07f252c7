"""The public names of every framework's module: a recorded list, ``import *`` and type checkers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.core.api import names

ROOT = Path(__file__).parent.parent.parent.parent
RECORDED = Path(__file__).with_name("public_names.txt")
NEEDED = {"tensorflow.keras": ("tensorflow", "tf_keras"), "keras.tf_keras": ("tf_keras",)}
PROGRAM = """
import importlib
module = importlib.import_module({module!r})
before = {{*globals()}}
from {module} import *
starred = {{*globals()}} - before - {{"before"}}
print("LISTED", *module.__all__)
print("STARRED", *starred)
print("UNKNOWN", *({{*module.__all__}} - {{*dir(module)}} - {{*starred}}))
"""


def recorded() -> dict[str, set[str]]:
    """The names of each module as they were recorded, by the title of their paragraph."""
    paragraphs = re.findall(r"^(farandole[^:]*):\n((?:.+\n)+)", RECORDED.read_text(), re.M)
    return {title: set(text.split()) for title, text in paragraphs}


def needed(module: str) -> tuple[str, ...]:
    """The packages without which a module cannot be imported."""
    short = module.removeprefix("farandole.").removesuffix(".mpi_ops")
    return NEEDED.get(short, () if short == "core.api.basics" else (short,))


@pytest.mark.parametrize("title", recorded())
def test_a_module_gives_the_recorded_names(title: str) -> None:
    module, _, keras_2 = title.partition(" ")
    for package in needed(module):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if keras_2 or module.endswith("tf_keras") else {}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        capture_output=True,
        text=True,
        env={**os.environ, **legacy},
    )
    printed = [line.split() for line in done.stdout.splitlines()]
    found = {words[0]: words[1:] for words in printed if words and words[0].isupper()}
    assert found.keys() == {"LISTED", "STARRED", "UNKNOWN"}, done.stderr
    assert found["UNKNOWN"] == []
    assert len(set(found["LISTED"])) == len(found["LISTED"])
    assert set(found["LISTED"]) == recorded()[title]
    assert set(found["STARRED"]) == recorded()[title]


def test_a_list_has_each_name_once_in_order() -> None:
    assert names.listed(("size", "rank"), ("Sum",), ("rank",)) == ["Sum", "rank", "size"]
    assert set(names.KERAS_2) - set(names.KERAS_3) == {"SyncBatchNormalization"}
