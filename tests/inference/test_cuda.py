"""Predictions of a model on a real GPU equal the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning

torch = pytest.importorskip("torch", reason="torch is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
import pyarrow.parquet as pq  # noqa: E402

from farandole.errors import JobFailedError  # noqa: E402
from farandole.inference import predict_parquet  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def predicted(model: Any, folder: Path, device: str, **options: Any) -> Any:
    output = folder / f"{device}.parquet".replace(":", "-")
    predict_parquet(
        model, str(folder / "in.parquet"), str(output), inputs="x", device=device, **options
    )
    return np.array(pq.read_table(output)["prediction"].to_pylist())


@pytest.mark.parametrize("kind", ["module", "script", "bfloat16"])
def test_the_gpu_predicts_as_the_cpu_does(kind: str, tmp_path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((1000, 8)).astype("float32")
    pq.write_table(pa.table({"x": list(x)}), tmp_path / "in.parquet")
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)
    )
    if kind == "script":
        model = torch.jit.script(model)
    elif kind == "bfloat16":
        model = model.bfloat16()
    found = predicted(model, tmp_path, "cuda")
    np.testing.assert_allclose(
        found,
        predicted(model, tmp_path, "cpu"),
        rtol=2e-2 if kind == "bfloat16" else 1e-4,
        atol=1e-2 if kind == "bfloat16" else 1e-5,
    )
    np.testing.assert_array_equal(found, predicted(model, tmp_path, "cuda:0", np=2))


def test_processes_that_share_a_gpu_are_reported(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(np.ones((2000, 8), "float32"))}), tmp_path / "in.parquet")
    count = torch.cuda.device_count()
    with pytest.raises(JobFailedError, match=mentioning(f"torch finds {count}", "'cuda'")):
        predicted(torch.nn.Linear(8, 1), tmp_path, "cuda", np=count + 1, rows_per_file=100)
