"""The command ``horovodrun``: its flags, configuration file, output and end."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from farandole.compat import HOROVOD, flags, horovodrun
from farandole.errors import SettingsError
from farandole.job.elastic.options import ElasticOptions
from farandole.job.launch import driver
from farandole.job.launch.job import Job
from farandole.job.launch.launchers import mpi
from tests.compat import tools
from tests.kits.messages import mentioning, mentions

# Every flag of horovodrun 0.28. A program's command line must keep working.
FLAGS = """
-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces --network-interface
--output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms
--cache-capacity --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
--no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune --autotune-log-file
--autotune-warmup-samples --autotune-steps-per-sample --autotune-bayes-opt-max-samples
--autotune-gaussian-process-noise --min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout
--reset-limit --blacklist-cooldown-range --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
--no-stall-check --stall-check --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds
--mpi-threads-disable --no-mpi-threads-disable --mpi-args --binding-args --tcp --num-nccl-streams --thread-affinity
--gloo-timeout-seconds --log-level --log-with-timestamp --log-without-timestamp --log-hide-timestamp
--no-log-hide-timestamp -prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile --hostfile
--host-discovery-script --gloo --mpi --jsrun
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Collect the jobs that ``main`` would run."""
    jobs: list[Job] = []
    monkeypatch.setattr(driver, "run", lambda job: jobs.append(job) or [])
    return jobs


def test_every_flag_is_known() -> None:
    known = {name for action in flags.parser()._actions for name in action.option_strings}
    assert known - {"-h", "--help"} == set(FLAGS.split())


@pytest.mark.parametrize(
    ("given", "setting", "value"),
    [
        ("--fusion-threshold-mb 10", "fusion_threshold", 10 << 20),
        ("--cycle-time-ms 20", "cycle_time", 20.0),
        ("--cache-capacity 512", "cache_capacity", 512),
        ("--autotune", "autotune", True),
        ("--no-autotune", "autotune", False),
        ("--autotune-log-file a.csv", "autotune_log", "a.csv"),
        ("--autotune-warmup-samples 1", "autotune_warmup_samples", 1),
        ("--autotune-steps-per-sample 2", "autotune_steps_per_sample", 2),
        ("--autotune-bayes-opt-max-samples 5", "autotune_bayes_opt_max_samples", 5),
        ("--autotune-gaussian-process-noise 0.2", "autotune_gaussian_process_noise", 0.2),
        ("--timeline-filename t.json", "timeline", "t.json"),
        ("--timeline-mark-cycles", "timeline_mark_cycles", True),
        ("--no-stall-check", "stall_check_disable", True),
        ("--stall-check", "stall_check_disable", False),
        ("--stall-check-warning-time-seconds 7", "stall_warning_seconds", 7.0),
        ("--stall-check-shutdown-time-seconds 9", "stall_shutdown_seconds", 9.0),
        ("--log-level DEBUG", "log_level", "debug"),
        ("--log-without-timestamp", "log_hide_time", True),
        ("--log-hide-timestamp", "log_hide_time", True),
        ("--log-with-timestamp", "log_hide_time", False),
        ("--start-timeout 11", "start_timeout", 11.0),
    ],
)
def test_a_flag_that_is_a_setting(given: str, setting: str, value: Any, started: list[Job]) -> None:
    assert horovodrun.main(["-np", "2", *given.split(), "true"]) == 0
    assert getattr(started[0].settings, setting) == value


@pytest.mark.parametrize(
    ("given", "variable", "text"),
    [
        ("--tcp", "NCCL_IB_DISABLE", "1"),
        ("--hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
        ("--no-torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", "0"),
        ("--num-nccl-streams 2", "HOROVOD_NUM_NCCL_STREAMS", "2"),
        ("--thread-affinity 1", "HOROVOD_THREAD_AFFINITY", "1"),
        ("--gloo-timeout-seconds 60", "HOROVOD_GLOO_TIMEOUT_SECONDS", "60"),
        ("--mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE", "1"),
        ("--cycle-time-ms 3", "HOROVOD_CYCLE_TIME", "3.0"),
        ("--fusion-threshold-mb 1", "HOROVOD_FUSION_THRESHOLD", "1048576"),
    ],
)
def test_a_flag_that_is_a_variable(
    given: str, variable: str, text: str, started: list[Job]
) -> None:
    assert horovodrun.main(["-np", "2", *given.split(), "true"]) == 0
    assert started[0].env[variable] == text


def test_the_rest_of_the_line_is_the_command(started: list[Job], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=1\n# more of it\n127.0.0.1 slots=2\n\n")
    assert (
        horovodrun.main(
            ["-np", "2", "-H", "localhost:4", "--verbose", "python", "train.py", "-np", "9"]
        )
        == 0
    )
    assert (
        horovodrun.main(
            [
                "-np",
                "3",
                "-hostfile",
                str(tmp_path / "hosts"),
                "-prefix-timestamp",
                "--output-filename",
                "out",
                "--",
                "x",
            ]
        )
        == 0
    )
    first, second = started
    assert (first.np, first.hosts, first.display.verbose, first.display.output_dir) == (
        2,
        "localhost:4",
        True,
        None,
    )
    assert list(first.command) == ["python", "train.py", "-np", "9"]
    assert (second.np, second.hosts, second.display.prefix_timestamp) == (
        3,
        "localhost:1,127.0.0.1:2",
        True,
    )
    assert (second.display.output_dir, list(second.command)) == ("out", ["x"])


def test_flags_of_an_elastic_job(
    started: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "discover.sh").write_text("#!/bin/sh\necho localhost\necho 127.0.0.1:1\n")
    (tmp_path / "discover.sh").chmod(0o755)
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "60")
    line = f"-np 3 --min-np 2 --max-np 4 --host-discovery-script {tmp_path}/discover.sh"
    line += " --slots 2 --reset-limit 5 --blacklist-cooldown-range 10 100 true"
    assert horovodrun.main(line.split()) == 0
    line = "-np 2 -H a:1,b:2 --min-num-proc 1 --elastic-timeout 7 x"
    assert horovodrun.main(line.split()) == 0
    plans = [job.elastic for job in started if job.elastic is not None]
    assert [plan.options for plan in plans] == [
        ElasticOptions(3, 2, 4, 60.0, 5, (10.0, 100.0)),
        ElasticOptions(2, 1, None, 7.0),
    ]
    assert [plan.discovery.find() for plan in plans] == [
        {"localhost": 2, "127.0.0.1": 1},
        {"a": 1, "b": 2},
    ]


def test_a_flag_wins_over_the_environment(
    started: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_CYCLE_TIME", "5")
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "6")
    assert horovodrun.main(["-np", "1", "--cycle-time-ms", "9", "true"]) == 0
    assert (started[0].settings.cycle_time, started[0].settings.cache_capacity) == (9.0, 6)


def test_ranks_see_the_given_settings() -> None:
    """Also settings equal to the default, and flags instead of the environment."""
    around = {"HOROVOD_FUSION_THRESHOLD": "67108864", "HOROVOD_CACHE_CAPACITY": "6"}
    given = [
        "--cache-capacity",
        "1024",
        "--stall-check-warning-time-seconds",
        "60",
        "--gloo-timeout-seconds",
        "7",
    ]
    done = tools.horovodrun("-np", "1", *given, "env", **around)
    lines = done.stdout.splitlines()
    for said in (
        "FUSION_THRESHOLD=67108864",
        "CACHE_CAPACITY=1024",
        "STALL_CHECK_TIME_SECONDS=60",
        "GLOO_TIMEOUT_SECONDS=7",
    ):
        assert f"[0]<stdout>:HOROVOD_{said}" in lines
    assert not any("HOROVOD_AUTOTUNE" in line for line in lines)


def test_parsed_flags_have_horovods_names() -> None:
    line = (
        "-np 2 --gloo --tcp --slots-per-host 3 --network-interfaces lo --blacklist-cooldown-range 1"
        " 2 true"
    )
    options = horovodrun.parse_args(line.split())
    assert (options.use_gloo, options.use_mpi, options.use_jsrun, options.tcp_flag) == (
        True,
        None,
        None,
        True,
    )
    assert (options.num_proc, options.slots, options.nics, options.cooldown_range) == (
        2,
        3,
        "lo",
        [1, 2],
    )
    assert options.log_with_timestamp is None
    for flag, shown in (("--log-hide-timestamp", False), ("--log-with-timestamp", True)):
        assert horovodrun.parse_args(["-np", "2", flag, "true"]).log_with_timestamp is shown


def test_flags_for_other_hosts_are_settings() -> None:
    line = "-np 1 -p 2222 -i key --network-interfaces eth0,ib0 true"
    found = horovodrun.job(horovodrun.parse_args(line.split())).settings
    assert (found.ssh_port, found.ssh_identity_file, found.network_interfaces) == (
        2222,
        "key",
        "eth0,ib0",
    )


def test_mpi_where_there_is_an_mpirun(
    started: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for there, launcher in (("/bin/mpirun", "mpi"), (None, "auto")):
        monkeypatch.setattr(mpi, "found", lambda there=there: there)
        assert horovodrun.main(["-np", "2", "--mpi", "true"]) == 0
        assert started[-1].launcher == launcher
        assert mentions(capsys.readouterr().err, "--mpi", "mpirun") is (there is None)


def test_each_flag_without_effect_is_reported_on_a_line(
    started: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        "-np 1 --mpi-args x --disable-cache --slots-per-host 2 --torus-allreduce"
        " --blacklist-cooldown-range 1 2 true"
    )
    assert horovodrun.main(line.split()) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(started) == 1
    assert [each.split(" has no effect: ")[0].removeprefix("horovodrun: ") for each in said] == [
        "--disable-cache",
        "--mpi-args",
        "--torus-allreduce",
        "--slots-per-host",
        "--blacklist-cooldown-range",
    ]
    assert horovodrun.main(["-np", "1", "--gloo", "--no-torus-allreduce", "true"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-np 2", "the command to run is missing"),
        ("true", "horovodrun: -np "),
        ("-np 2 --nonsense true", "unrecognized arguments: --nonsense"),
        ("-np 0 true", "np=0 must be >= 1"),
        ("-np two true", "invalid int value: 'two'"),
        ("--num-proc=-- true", "argument -np/--num-proc: "),
        ("-np 2 --cycle-time-ms=-- true", "argument --cycle-time-ms: "),
        ("-np 2 --cycle-time-ms -1 true", "cycle_time_ms=-1.0 must be >= 0"),
        ("-np 2 --fusion-threshold-mb -1 true", "fusion_threshold_mb=-1 must be >= 0"),
        ("-np 2 --cache-capacity -1 true", "cache_capacity=-1 must be >= 0"),
        (
            "-np 2 --stall-check-warning-time-seconds -1 true",
            "stall_check_warning_time_seconds=-1 must be >= 0",
        ),
        (
            "-np 2 --autotune-gaussian-process-noise 1.5 true",
            "autotune_gaussian_process_noise=1.5 must be in [0, 1]",
        ),
        ("-np 2 --log-level LOUD true", "--log-level LOUD "),
        ("-np 2 -H a:1 --hostfile f true", "--hosts and --hostfile "),
        ("-np 2 --gloo --mpi true", "--gloo and --mpi "),
        ("-np 2 --jsrun true", "Horovod did not detect an LSF job."),
        ("-np 2 --jsrun true", "leave out --jsrun"),
        (
            "-np 2 -H nonsense true",
            "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2.",
        ),
        (
            "-np 5 -H localhost:4 true",
            "Requested more processes (5) than there are available slots (4)",
        ),
        ("-np 2 --hostfile /no/such/file true", "'/no/such/file' cannot be read"),
        ("-np 2 --min-np 3 true", "np=2 is less than min_np=3"),
        ("-np 2 --max-np 1 true", "max_np=1 is less than min_np=2"),
        ("-np 2 --min-np 0 true", "min_num_proc=0 must be >= 1"),
        ("-np 2 --min-np 1 --reset-limit 0 true", "reset_limit=0"),
        ("-np 2 --min-np 1 --blacklist-cooldown-range 0 9 true", "cooldown_range=0:9"),
        ("-np 2 -H a:2 --host-discovery-script d true", "--hosts and --host-discovery-script "),
        ("-np 2 --config-file /no/such.yaml true", "cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "yaml" in line:
        pytest.importorskip("yaml", reason="PyYAML is not installed")
    assert horovodrun.main(line.split()) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("horovodrun: ")
    assert said.count("\n") <= 2


def test_a_hostfile_that_cannot_be_read_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("one slots=2\ntwo three four\n")
    with pytest.raises(
        SettingsError,
        match=mentioning("hosts:2", "'two three four'"),
    ):
        horovodrun.job(
            horovodrun.parse_args(["-np", "1", "--hostfile", str(tmp_path / "hosts"), "true"])
        )


class TestConfigurationFile:
    @pytest.fixture(autouse=True)
    def _yaml(self) -> None:
        pytest.importorskip("yaml", reason="PyYAML is not installed")

    CONTENT = """
controller: gloo
verbose: true
params: {fusion_threshold_mb: 32, cycle_time_ms: 2, cache_capacity: 0, torus_allreduce: false}
autotune: {enabled: true, log_file: tune.csv, warmup_samples: 5, gaussian_process_noise: 0.1}
timeline: {filename: trace.json, mark_cycles: true}
stall_check: {enabled: false, warning_time_seconds: 30}
library_options: {num_nccl_streams: 2}
logging: {level: INFO, hide_timestamp: true}
"""

    def parse(self, tmp_path: Path, content: str, *arguments: str) -> Any:
        (tmp_path / "config.yaml").write_text(content)
        return horovodrun.parse_args(
            ["-np", "1", "--config-file", str(tmp_path / "config.yaml"), *arguments, "true"]
        )

    def test_configuration_equals_flags(self, tmp_path: Path) -> None:
        job = horovodrun.job(self.parse(tmp_path, self.CONTENT))
        settings = job.settings
        assert (settings.fusion_threshold, settings.cycle_time, settings.cache_capacity) == (
            32 << 20,
            2.0,
            0,
        )
        assert (settings.autotune, settings.autotune_log, settings.autotune_warmup_samples) == (
            True,
            "tune.csv",
            5,
        )
        assert (settings.timeline, settings.timeline_mark_cycles) == ("trace.json", True)
        assert (settings.stall_check_disable, settings.stall_warning_seconds) == (True, 30.0)
        assert (settings.log_level, settings.log_hide_time, job.display.verbose) == (
            "info",
            True,
            True,
        )
        assert (job.env["HOROVOD_TORUS_ALLREDUCE"], job.env["HOROVOD_NUM_NCCL_STREAMS"]) == (
            "0",
            "2",
        )

    def test_flags_win(self, tmp_path: Path) -> None:
        given = ["--cycle-time-ms", "9", "--no-autotune", "--stall-check", "--mpi"]
        settings = horovodrun.job(self.parse(tmp_path, self.CONTENT, *given)).settings
        assert (settings.cycle_time, settings.autotune, settings.stall_check_disable) == (
            9.0,
            False,
            False,
        )

    def test_unknown_configuration_keys_are_reported(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.parse(tmp_path, "params: {cycle_tim_ms: 2}\nparam: 3\n")
        said = capsys.readouterr().err
        assert mentions(said, "params.cycle_tim_ms", "configuration")
        assert mentions(said, "param", "configuration")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("controller: pigeon", "No such controller supported: pigeon"),
            (
                "params: {cycle_time_ms: soon}",
                "config.yaml: params.cycle_time_ms='soon' must be of type float",
            ),
            ("params: {cycle_time_ms: -1}", "config.yaml: params.cycle_time_ms=-1 must be >= 0"),
            (
                "autotune: {gaussian_process_noise: 3}",
                "config.yaml: autotune.gaussian_process_noise=3 must be in",
            ),
            ("logging: {level: loud}", "config.yaml: logging.level loud "),
            (
                "params: {cycle_time_ms: .nan}",
                "config.yaml: params.cycle_time_ms='nan' must be",
            ),
            (
                "controller: jsrun",
                "config.yaml: controller='jsrun': Horovod did not detect an LSF job",
            ),
            ("verbose: 3", "config.yaml: verbose=3 must be of type bool"),
            (
                'stall_check: {enabled: "no"}',
                "config.yaml: stall_check.enabled='no' must be of type bool",
            ),
            ("params: [1]", "config.yaml: params=[1] must be a section"),
            ("- a list", "must hold sections"),
            ("params: {", "cannot be read"),
        ],
    )
    def test_invalid_configuration_files_are_refused(
        self, tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.yaml").write_text(content)
        assert (
            horovodrun.main(["-np", "1", "--config-file", str(tmp_path / "config.yaml"), "true"])
            == 2
        )
        said = capsys.readouterr().err
        assert says in said
        assert len(said.splitlines()) == 1

    def test_the_error_without_pyyaml_names_the_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "yaml", None)
        with pytest.raises(SettingsError, match=mentioning("pip install pyyaml")):
            self.parse(tmp_path, "")


def test_version() -> None:
    done = tools.horovodrun("--version")
    assert (done.returncode, done.stdout) == (0, f"{HOROVOD}\n")


def test_the_module_is_the_command_too() -> None:
    """Scripts contain ``python -m horovod.runner.launch -np 16 python ...``."""
    code = "import farandole.numpy as hvd; hvd.init(); print(hvd.rank(), hvd.size())"
    done = tools.python("-m", "horovod.runner.launch", "-np", "2", sys.executable, "-c", code)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["[0]<stdout>:0 2", "[1]<stdout>:1 2"],
    )
    assert tools.python("-m", "horovod.runner.launch", "-np", "1", "false").returncode == 1


def test_check_build_lists_the_available_parts() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    lines = tools.horovodrun("--check-build").stdout.splitlines()
    for line in (
        "Available Frameworks:",
        "    [X] PyTorch",
        "    [ ] TensorFlow",
        "    [ ] MXNet",
        "Available Controllers:",
        "    [X] Gloo",
        "Available Tensor Operations:",
        "    [ ] DDL",
        "    [ ] CCL",
    ):
        assert line in lines
    assert sum(bool(re.fullmatch(r"    \[[X ]\] NCCL", line)) for line in lines) == 1


def test_output_per_rank_without_prefixes(tmp_path: Path) -> None:
    code = "import os, sys; print('out', os.environ['HOROVOD_RANK']); print('err', file=sys.stderr)"
    done = tools.horovodrun("-np", "2", "--output-filename", tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:out 0", "[1]<stdout>:out 1"]
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>:err", "[1]<stderr>:err"]
    assert (tmp_path / "rank.1" / "stdout").read_text() == "out 1\n"
    assert (tmp_path / "rank.0" / "stderr").read_text() == "err\n"


def test_one_rank_has_its_files_too(tmp_path: Path) -> None:
    done = tools.horovodrun(
        "-np", "1", "--output-filename", tmp_path, sys.executable, "-c", "print(1)"
    )
    assert (done.returncode, (tmp_path / "rank.0" / "stdout").read_text()) == (0, "1\n")


def test_two_names_of_this_machine_are_two_hosts() -> None:
    code = (
        "import os; print(*(os.environ[f'HOROVOD_{name}'] for name in ('RANK', 'LOCAL_SIZE',"
        " 'CROSS_SIZE')))"
    )
    done = tools.horovodrun("-np", "4", "-H", "localhost:2,127.0.0.1:4", sys.executable, "-c", code)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{rank} 2 2" for rank in range(4)]


def test_an_address_of_this_machine_is_a_host_too() -> None:
    addresses = [each.address for network in psutil.net_if_addrs().values() for each in network]
    own = [
        each for each in addresses if re.fullmatch(r"[\d.]+", each) and not each.startswith("127.")
    ]
    if not own:
        pytest.skip("this machine has no network")
    done = tools.horovodrun("-np", "1", "-H", f"{own[0]}:1", "echo", "here")
    assert (done.returncode, done.stdout) == (0, "[0]<stdout>:here\n"), done.stderr


def test_the_status_is_that_of_the_rank_that_failed() -> None:
    code = "import os, sys, time\nif os.environ['HOROVOD_RANK'] == '1': sys.exit(7)\ntime.sleep(30)"
    done = tools.horovodrun("-np", "2", sys.executable, "-c", code)
    assert done.returncode == 7
    assert "Rank 1 on localhost" in done.stderr
    assert done.stderr.endswith(
        "\nHorovod detected that one or more processes exited with non-zero status, thus causing"
        " the job to be terminated. The first process to do so was:\nProcess name: 1\nExit"
        " code: 7\n"
    )
