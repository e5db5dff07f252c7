from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import farandole
from farandole import cli
from farandole.cli import env, machine


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


def test_the_report_has_what_one_asks_for(report: str) -> None:
    lines = {line.split("  ")[1]: line for line in report.splitlines() if line.startswith("  ")}
    assert sys.version.split()[0] in lines["Python"]
    assert {"farandole", "numpy", "system", "kernel", "cores", "memory", "shared memory", "tcp", "open files"} <= {
        name.strip() for name in lines
    }
    assert "works: memfd and abstract Unix sockets" in report
    assert "127.0.0.1" in lines["tcp"]


def test_secrets_are_hidden_and_the_rest_is_left_out(report: str) -> None:
    assert "0123456789abcdef" not in report
    assert "hunter2" not in report
    assert "FARANDOLE_SECRET (hidden)" in report
    assert "NCCL_SOCKET_IFNAME eth0" in report
    assert "UNRELATED" not in report
    assert env.variables({"SPARK_MASTER": "spark://user:pw@host:1"}) == {"SPARK_MASTER": "spark://(hidden)@host:1"}


def test_the_report_fits_the_terminal(report: str) -> None:
    assert [line for line in report.splitlines() if len(line) > 80 and "/long/" not in line] == []


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["versions", "machine", "GPUs", "wires", "limits", "environment"]
    assert farandole.__version__ in found["versions"]["farandole"] or "source" in found["versions"]["farandole"]


def test_nothing_heavy_is_imported() -> None:
    code = "import sys; from farandole.cli import main; main(['env']); print('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.partition("MODULES")[2].split())
    assert not loaded & {"numpy", "torch", "tensorflow", "keras", "jax", "mxnet", "pyspark", "mpi4py"}


class TestGpus:
    def test_what_nvidia_smi_says(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, 143771 MiB, 580.1'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert env._gpus({"CUDA_VISIBLE_DEVICES": ""}) == {"0": "NVIDIA H200, 143771 MiB, 580.1", "visible": "0"}

    def test_a_tool_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'no driver'; exit 9\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert env._gpus({}) == {"nvidia-smi": "fails: no driver"}

    @pytest.mark.parametrize(
        ("visible", "count"),
        [(None, 3), ("", 0), ("0,2", 2), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3,4", 3), ("GPU-ab", 1)],
    )
    def test_how_many_are_visible(self, tmp_path: Path, visible: str | None, count: int) -> None:
        for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
            (tmp_path / name).touch()
        told = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert machine.visible_gpus(told, str(tmp_path)) == count


class TestAuto:
    @pytest.mark.parametrize(
        ("cores", "gpus", "gib", "np", "why"),
        [
            (1, 0, 64, 1, "there is one usable core"),
            (2, 0, 64, 2, "one for each of 2 usable cores"),
            (4, 0, 64, 4, "one for each of 4 usable cores"),
            (6, 0, 64, 4, "6 usable cores, two for a rank"),
            (64, 0, 512, 32, "64 usable cores, two for a rank"),
            (64, 8, 512, 8, "one for each of 8 GPUs"),
            (2, 1, 512, 1, "there is one GPU"),
            (16, 0, 3, 3, "3.0 GiB of memory are free"),
            (2, 0, 0.5, 1, "0.5 GiB of memory are free"),
        ],
    )
    def test_how_many_ranks(self, cores: int, gpus: int, gib: float, np: int, why: str) -> None:
        found = machine.ranks(cores, gpus, int(gib * machine.GIB))
        assert found.np == np
        assert why in found.why

    @pytest.mark.parametrize(
        ("files", "limit"),
        [({"memory.max": "1024\n"}, 1024), ({"memory.max": "max\n"}, 1 << 62), ({}, 1 << 62),
         ({"memory/memory.limit_in_bytes": "4096\n"}, 4096)],
    )  # fmt: skip
    def test_the_memory_of_a_container(self, tmp_path: Path, files: dict[str, str], limit: int) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        assert machine.memory_limit(str(tmp_path)) == limit
