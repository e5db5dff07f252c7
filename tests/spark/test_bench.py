"""``farandole bench start --launcher spark`` times Farandole, TorchDistributor and a bare stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import checked
from benchmarks.samples import BARE_STAGE, OURS, TORCH_DISTRIBUTOR

ROOT = Path(__file__).parent.parent.parent

for package in ("torch", "pandas", "pyarrow"):
    pytest.importorskip(package, reason=f"{package} is not installed")


def test_all_contenders_take_part(tmp_path: Path) -> None:
    """In a separate process: a contender that ends late would interrupt this one's JVM in a call."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "start",
        "--launcher",
        "spark",
        "--quick",
        "--json",
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "runs.json")],
        cwd=ROOT,
        timeout=500,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [case] = json.loads((tmp_path / "runs.json").read_text())["cases"]
    medians = {name: each["median"] for name, each in case["contenders"].items()}
    assert set(medians) == {OURS, TORCH_DISTRIBUTOR, BARE_STAGE}
    assert min(medians.values()) > 0


def test_the_spark_launcher_is_refused_for_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checked(["step", "--launcher", "spark"])
    assert "--launcher=spark" in capsys.readouterr().err
