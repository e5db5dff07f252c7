"""The examples learn, and leave their predictions: spark_rossmann.py with Keras as users run it,
spark_pipeline.py with torch in the session of other tests. Of its model of Keras, the training is
tried.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.estimators.tools import Pool
from tests.keras.backends import QUICK

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PIPELINE = EXAMPLES / "spark_pipeline.py"


def check_work(folder: Path) -> None:
    """Predictions and a run are left, and no rows."""
    assert sorted(path.name for path in folder.iterdir()) == [
        "intermediate_data",
        "predictions",
        "runs",
    ]
    assert list((folder / "intermediate_data").iterdir()) == []


def test_sales_are_foreseen(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(EXAMPLES / "spark_rossmann.py"),
        "--master",
        "local[2]",
        "--work",
        str(tmp_path),
    ]
    env = {**os.environ, "KERAS_BACKEND": QUICK}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(
        r"^RMSPE ([\d.]+)%, of the mean ([\d.]+)%: (\d+) predictions in ", done.stdout, re.M
    )
    assert found, done.stdout
    assert float(found[1]) < 15 < 40 < float(found[2])
    assert int(found[3]) > 500
    check_work(tmp_path)


def test_a_pipeline_reads_digits(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setattr(
        sys, "argv", [str(PIPELINE), "--framework", "torch", "--work", str(tmp_path)]
    )
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # others need it, too
    runpy.run_path(str(PIPELINE), run_name="__main__")
    found = re.search(
        r"^accuracy ([\d.]+)% of (\d+) predictions in ", capsys.readouterr().out, re.M
    )
    assert found
    assert float(found[1]) > 90
    assert 250 < int(found[2]) < 500
    check_work(tmp_path)


def test_the_model_of_keras_reads_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    import pyarrow as pa
    import pyarrow.parquet as pq

    example: Any = runpy.run_path(str(PIPELINE))
    pixels, digits = example["load"](None)
    path = tmp_path / "digits.parquet"
    pq.write_table(pa.table({"features": list(pixels / 16), "digit": digits}), path)
    options = {
        "feature_cols": ["features"],
        "label_cols": ["digit"],
        "epochs": 8,
        "batch_size": 32,
        "random_seed": 1,
    }
    estimator = example["keras_estimator"](
        pixels.shape[1], **options, verbose=0, backend=Pool(1, QUICK)
    )
    losses = estimator.fit_on_parquet(str(path)).getHistory()["loss"]
    assert losses[-1] < 0.3 * losses[0]
