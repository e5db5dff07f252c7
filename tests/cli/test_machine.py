from __future__ import annotations

from pathlib import Path

import pytest

from farandole import cli
from farandole.cli import machine
from farandole.job.launch import driver
from farandole.job.launch.job import Job
from tests.kits.messages import mentions


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    jobs: list[Job] = []
    monkeypatch.setattr(driver, "run", jobs.append)
    return jobs


class TestGpus:
    @pytest.mark.parametrize(
        ("visible", "count"),
        [(None, 3), ("", 0), ("0,2", 2), ("-1", 0), ("1,-1,2", 1), ("0,1,2,3,4", 3), ("GPU-ab", 1)],
    )
    def test_how_many_are_visible(self, tmp_path: Path, visible: str | None, count: int) -> None:
        for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
            (tmp_path / name).touch()
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert machine.visible_gpus(environment, str(tmp_path)) == count


class TestAuto:
    @pytest.mark.parametrize(
        ("cores", "gpus", "gib", "np", "why"),
        [
            (1, 0, 64, 1, "there is one usable core"),
            (2, 0, 64, 2, "one for each of 2 usable cores"),
            (4, 0, 64, 4, "one for each of 4 usable cores"),
            (6, 0, 64, 4, "6 usable cores"),
            (64, 0, 512, 32, "64 usable cores"),
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
        [
            ({"memory.max": "1024\n"}, 1024),
            ({"memory.max": "max\n"}, 1 << 62),
            ({}, 1 << 62),
            ({"memory/memory.limit_in_bytes": "4096\n"}, 4096),
            (
                {
                    "groups": "5:cpu:/x\n4:memory:/slurm/job_1/step_0\n",
                    "memory/memory.limit_in_bytes": "9223372036854771712\n",
                    "memory/slurm/job_1/memory.limit_in_bytes": "8192\n",
                    "memory/slurm/job_1/step_0/memory.limit_in_bytes": "9223372036854771712\n",
                },
                8192,
            ),
            (
                {
                    "groups": "0::/user/run.scope\n",
                    "user/memory.max": "max\n",
                    "user/run.scope/memory.max": "5\n",
                },
                5,
            ),
        ],
    )
    def test_the_memory_of_a_container(
        self, tmp_path: Path, files: dict[str, str], limit: int
    ) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_text(text)
        assert machine.memory_limit(str(tmp_path), str(tmp_path / "groups")) == limit

    def test_unknown_free_memory_limits_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # /proc may be mounted without meminfo
        monkeypatch.setattr(machine, "memory", lambda: machine.Memory(0, 0))
        monkeypatch.setattr(machine, "memory_limit", lambda: 1 << 62)
        assert machine.ranks(4, 0, machine.free_memory()).np == 4


def test_the_memory_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:       24 kB\nMemFree: 3 kB\nMemAvailable:   16 kB\nSwapTotal: 1 kB\n"
    )
    assert machine.memory(str(tmp_path / "meminfo")) == (24 << 10, 16 << 10)
    assert 0 < machine.memory().free <= machine.memory().total


class TestTheNumberOfRanks:
    def test_the_choice_is_logged_with_its_reason(
        self,
        started: list[Job],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr("farandole.cli.run.cores", lambda: 16)
        monkeypatch.setattr(machine, "visible_gpus", lambda env: 0)
        monkeypatch.setattr(machine, "free_memory", lambda: 64 << 30)
        assert cli.main(["run", "-np", "auto", "true"]) == 0
        assert started[0].np == 8
        assert mentions(capsys.readouterr().err, "-np auto", "8 ranks", "16 usable cores")

    def test_the_places_of_hosts(
        self, started: list[Job], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["run", "-n", "auto", "-H", "localhost:2,elsewhere.invalid:3", "true"]) == 0
        assert started[0].np == 5
        assert mentions(capsys.readouterr().err, "5 ranks", "--hosts")

    def test_clusters_require_the_number_of_ranks(
        self, started: list[Job], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["run", "-np", "auto", "--launcher", "spark", "true"]) == 2
        assert mentions(capsys.readouterr().err, "launcher 'spark'", "-np 4")
