"""A started process imports Keras without the packages that its tests never use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.keras.backends import BACKENDS

HEAVY = ("torch._dynamo", "sklearn", "pandas", "matplotlib")
PROGRAM = f"""
import sys
import keras
import numpy as np

layers = [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("adam", "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
print(*[name for name in {HEAVY} if name in sys.modules])
import sklearn, pandas, keras.src.backend.common.global_state
keras.backend.clear_session()  # imports torch._dynamo where the backend is torch
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.skipif("torch" not in BACKENDS, reason="torch is not installed")
def test_unused_packages_are_imported_when_they_are_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["", "True"], done.stderr
