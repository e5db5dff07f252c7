"""``farandole bench start --launcher spark`` times ours, TorchDistributor and a bare stage."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from benchmarks.__main__ import checked, main
from benchmarks.samples import BARE_STAGE, OURS, TORCH_DISTRIBUTOR

for package in ("torch", "pandas", "pyarrow"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.timeout(300)
def test_all_contenders_take_part(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["start", "--launcher", "spark", "--quick", "--json", str(tmp_path / "runs.json")]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    [case] = json.loads((tmp_path / "runs.json").read_text())["cases"]
    medians = {name: each["median"] for name, each in case["contenders"].items()}
    assert set(medians) == {OURS, TORCH_DISTRIBUTOR, BARE_STAGE}
    assert min(medians.values()) > 0


def test_it_is_about_starting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checked(["step", "--launcher", "spark"])
    assert "--launcher=spark is about starting" in capsys.readouterr().err
