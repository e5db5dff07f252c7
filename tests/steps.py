"""One quick run of ``farandole bench step --framework NAME``. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.samples import ALONE, OURS, TOGETHER


def check_quick_run(framework: str, peer: str, folder: Path) -> None:
    """Run the benchmark once. ``peer``: the contender next to Farandole; empty if there is none."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "farandole.cli",
            "bench",
            "step",
            "--framework",
            framework,
            "--quick",
            "--json",
            "out.json",
        ],
        cwd=folder,
        text=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "out.json").read_text())
    names = ["MLP, 4.2 M parameters", "conv net, 1.2 M parameters"]
    assert [case["name"] for case in found["cases"]] == names
    contenders = {ALONE, TOGETHER, OURS, *filter(None, [peer])}
    for case in found["cases"]:
        assert case["contenders"].keys() == contenders
        assert all(len(each["samples"]) == 3 for each in case["contenders"].values())
        assert all(0 < each["p10"] <= each["median"] for each in case["contenders"].values())
        assert f"| {case['name']} " in done.stdout
    assert f"added by {OURS}" in done.stdout
    if peer:
        assert f"added by {peer}" in done.stdout
    assert ("ratio" in done.stdout) == bool(peer)
    assert found["machine"]["versions"][framework if framework != "tensorflow" else "tf_keras"]
