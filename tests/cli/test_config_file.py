from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farandole import cli
from farandole.job.launch import driver
from farandole.job.launch.job import Job
from tests.kits.messages import mentions

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

CONTENT = """
np: 3
verbose: true
prefix-timestamp: true
output_dir: logs
fusion_threshold_mb: 0.5
cycle_time_ms: 2
overlap: on
nccl: "off"
check: off
no_stall_check: false
log-level: INFO
timeline_filename:
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    jobs: list[Job] = []
    monkeypatch.setattr(driver, "run", jobs.append)
    return jobs


def run(tmp_path: Path, content: str, *arguments: str) -> int:
    (tmp_path / "job.yaml").write_text(content)
    return cli.main(["run", "--config-file", str(tmp_path / "job.yaml"), *arguments, "true"])


def test_a_configuration_file_equals_flags(
    tmp_path: Path, started: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_DISABLE", "1")
    assert run(tmp_path, CONTENT) == 0
    (job,) = started
    assert (job.np, job.display.verbose, job.display.prefix_timestamp) == (3, True, True)
    assert job.display.output_dir == "logs"
    settings = job.settings
    assert (settings.fusion_threshold, settings.cycle_time) == (1 << 19, 2.0)
    assert (settings.overlap, settings.nccl, settings.log_level) == ("on", "off", "info")
    assert (settings.check, settings.stall_check_disable) == ("off", False)


def test_flags_win(tmp_path: Path, started: list[Job]) -> None:
    assert (
        run(
            tmp_path,
            CONTENT,
            "-np",
            "2",
            "--cycle-time-ms",
            "9",
            "--no-stall-check",
            "--overlap=off",
        )
        == 0
    )
    (job,) = started
    assert (job.np, job.settings.cycle_time, job.settings.stall_check_disable) == (2, 9.0, True)
    assert job.settings.overlap == "off"


@pytest.mark.parametrize("said", ["hosts: nowhere:2", "hostfile: /no/such"])
def test_hosts_of_the_command_line_win_over_the_file(
    tmp_path: Path, started: list[Job], said: str
) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2")
    for flags in (("-H", "localhost:2"), ("--hostfile", str(tmp_path / "hosts"))):
        assert run(tmp_path, f"np: 2\n{said}", *flags) == 0
        assert started.pop().hosts == "localhost:2"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "num_procs: 3",
            "job.yaml: num_procs: unknown option 'num_procs'; did you mean 'num-proc'?",
        ),
        ("fusion_treshold_mb: 3", "did you mean 'fusion-threshold-mb'?"),
        (
            "params: {cycle_time_ms: 3}",
            "job.yaml: params: only horovodrun",
        ),
        ("verbose: 3", "job.yaml: verbose=3 must be true or false"),
        ("np: [1]", "job.yaml: np=[1] must be text or a number"),
        ("start_timeout: true", "job.yaml: start_timeout=True must be text or a number"),
        ("np: 2\ncycle_time_ms: soon", "job.yaml: cycle_time_ms='soon' "),
        ("np: 2\nssh-port: -3", "job.yaml: ssh-port=-3 must be in [0, 65535]"),
        ("np: 0", "job.yaml: np=0 must be >= 1"),
        ("np: many", "job.yaml: np 'many' must be"),
        ("np: 2\nhosts: a:b", "job.yaml: hosts: Invalid host input"),
        ("np: 2\nhostfile: /no/such", "job.yaml: hostfile '/no/such' cannot be read"),
        ("np: 2\nshow_ranks: 2", "job.yaml: show_ranks: 2 "),
        ("np: 2\nlauncher: pigeon", "job.yaml: launcher: unknown launcher 'pigeon'"),
        ("np: 2\nstrategy: local_sgd:x", "job.yaml: strategy local_sgd:x: "),
        ("np: 2\ncodec: topk:x", "job.yaml: codec='topk:x' "),
        ("np: 2\ncheck: on", "check=True must be text"),
        (
            "np: 2\nnetwork_interfaces: [lo]",
            "must be text or a number, as on the command line after --network-interfaces",
        ),
        ("np: 2\nhosts: a:2\nhostfile: x", "job.yaml: hosts and hostfile are"),
        ("help: true", "unknown option 'help'"),
        ("- a list", "must hold options by name (np: 2), not ['a list']"),
        ("np: {", "cannot be read"),
        (
            "np: 2\nverbose: true\nnp: 3",
            "job.yaml: np",
        ),
        ("verbose: true", "-np "),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, started: list[Job], content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, content) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1


def test_errors_of_flags_name_flags(
    tmp_path: Path, started: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "np: 2\ncycle_time_ms: 2", "--cycle-time-ms", "soon") == 2
    assert mentions(capsys.readouterr().err, "farandole: --cycle-time-ms='soon'")


def test_errors_of_the_start_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert run(tmp_path, f"np: 1\noutput_dir: {tmp_path}/taken") == 2
    assert f"job.yaml: output_dir='{tmp_path}/taken' cannot be used" in capsys.readouterr().err


def test_a_missing_file(started: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--config-file", "/no/such.yaml", "true"]) == 2
    assert "--config-file '/no/such.yaml' cannot be read" in capsys.readouterr().err


def test_without_pyyaml(
    tmp_path: Path,
    started: list[Job],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert run(tmp_path, "np: 2") == 2
    assert mentions(capsys.readouterr().err, "PyYAML", "pip install pyyaml")
