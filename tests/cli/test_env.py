from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import farandole
from farandole import cli
from farandole.cli import env
from tests.kits.messages import mentions


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FARANDOLE_SECRET", "0123456789abcdef")
    monkeypatch.setenv("TORCH_HUB_TOKEN", "hunter2")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("HOROVOD_TIMELINE", "/a/" + "long/" * 30 + "path")
    monkeypatch.setenv("UNRELATED", "private")
    assert cli.main(["env"]) == 0
    return capsys.readouterr().out


def test_the_report_has_the_facts_of_an_issue(report: str) -> None:
    lines = {line.split("  ")[1]: line for line in report.splitlines() if line.startswith("  ")}
    assert sys.version.split()[0] in lines["Python"]
    assert {
        "farandole",
        "numpy",
        "system",
        "kernel",
        "cores",
        "memory",
        "shared memory",
        "tcp",
        "open files",
    } <= {name.strip() for name in lines}
    assert "works: memfd and abstract Unix sockets" in report
    assert "127.0.0.1" in lines["tcp"]


def test_secrets_are_hidden_and_the_rest_is_left_out(report: str) -> None:
    assert "0123456789abcdef" not in report
    assert "hunter2" not in report
    assert "FARANDOLE_SECRET (hidden)" in report
    assert "NCCL_SOCKET_IFNAME eth0" in report
    assert "UNRELATED" not in report
    assert env.variables({"SPARK_MASTER": "spark://user:pw@host:1"}) == {
        "SPARK_MASTER": "spark://(hidden)@host:1"
    }


def test_the_report_fits_the_terminal(report: str) -> None:
    assert [line for line in report.splitlines() if len(line) > 80 and "/long/" not in line] == []


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["versions", "machine", "GPUs", "wires", "limits", "environment"]
    assert (
        farandole.__version__ in found["versions"]["farandole"]
        or "source" in found["versions"]["farandole"]
    )


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from farandole.cli import main; main(['env']); print('MODULES', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    loaded = set(done.stdout.partition("MODULES")[2].split())
    assert not loaded & {
        "numpy",
        "torch",
        "tensorflow",
        "keras",
        "jax",
        "mxnet",
        "pyspark",
        "mpi4py",
    }


def test_a_broken_installation_is_reported_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert cli.main(["env"]) == 0
    assert mentions(capsys.readouterr().out, "psutil")


def test_interfaces_that_cannot_be_listed_break_no_wire(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/net/dev")

    monkeypatch.setattr("psutil.net_if_stats", absent)
    assert cli.main(["env"]) == 0
    assert re.search(r"tcp +works: 127.0.0.1\n", capsys.readouterr().out)


class TestGpus:
    def test_gpus_are_read_from_nvidia_smi(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, 143771 MiB, 580.1'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert env._gpus({"CUDA_VISIBLE_DEVICES": ""}) == {
            "0": "NVIDIA H200, 143771 MiB, 580.1",
            "visible": "0",
        }

    def test_a_tool_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'no driver'; exit 9\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert env._gpus({}) == {"nvidia-smi": "fails: no driver"}
