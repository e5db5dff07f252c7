"""examples/spark_pipeline.py learns to read digits, and leaves its predictions: as a whole with Keras. Of torch, whose
pipeline on Spark is that of the page, the model is tried."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.estimators.tools import Pool
from tests.keras.backends import QUICK

pytestmark = pytest.mark.slow
pytest.importorskip("sklearn", reason="scikit-learn is not installed")
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "spark_pipeline.py"


@pytest.mark.timeout(600)
def test_a_pipeline_reads_digits(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--framework", "keras", "--master", "local[2]", "--work", str(tmp_path)]
    env = {**os.environ, "KERAS_BACKEND": QUICK}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^accuracy ([\d.]+)% of (\d+) predictions in ", done.stdout, re.M)
    assert found, done.stdout
    assert float(found[1]) > 90
    assert 250 < int(found[2]) < 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["intermediate_train_data", "predictions", "runs"]
    assert list((tmp_path / "intermediate_train_data").iterdir()) == []


def test_the_model_of_torch_reads_digits(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    example: Any = runpy.run_path(str(EXAMPLE))
    pixels, digits = example["load"](None)
    path = tmp_path / "digits.parquet"
    pq.write_table(pa.table({"features": list(pixels / 16), "digit": digits}), path)
    options = {"feature_cols": ["features"], "label_cols": ["digit"], "epochs": 8, "batch_size": 32, "random_seed": 1}
    estimator = example["torch_estimator"](pixels.shape[1], **options, verbose=0, backend=Pool(1))
    losses = [epoch["train"]["loss"] for epoch in estimator.fit_on_parquet(str(path)).getHistory()]
    assert losses[-1] < 0.3 * losses[0]
