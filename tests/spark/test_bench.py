"""``farandole bench start --launcher spark`` times ours, TorchDistributor and a bare stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import checked
from benchmarks.samples import BARE_STAGE, OURS, TORCH_DISTRIBUTOR

for package in ("torch", "pandas", "pyarrow"):
    pytest.importorskip(package, reason=f"{package} is not installed")

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(300)
def test_all_contenders_take_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "start", "--launcher", "spark", "--quick", "--json"]
    done = subprocess.run(
        [*command, str(tmp_path / "runs.json")], cwd=ROOT, capture_output=True, text=True, timeout=280,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [case] = json.loads((tmp_path / "runs.json").read_text())["cases"]
    medians = {name: each["median"] for name, each in case["contenders"].items()}
    assert set(medians) == {OURS, TORCH_DISTRIBUTOR, BARE_STAGE}
    assert 0 < medians[BARE_STAGE] < 120


def test_it_is_about_starting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checked(["step", "--launcher", "spark"])
    assert "--launcher=spark is about starting" in capsys.readouterr().err
