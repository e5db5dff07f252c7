from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

import farandole
from farandole import cli
from farandole.cli import run
from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from farandole.job.elastic.options import ElasticOptions
from farandole.job.launch import driver
from farandole.job.launch.contract import JobRequest
from farandole.job.launch.job import Job
from farandole.job.plugins import registry
from tests.kits.messages import mentioning, mentions
from tests.kits.patience import PATIENT


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Collect the jobs that the command line would start."""
    jobs: list[Job] = []
    monkeypatch.setattr(driver, "run", jobs.append)
    return jobs


class TestRun:
    def test_the_command_begins_at_the_first_word_that_is_no_flag(self, started: list[Job]) -> None:
        assert (
            cli.main(
                ["run", "-np", "2", "--verbose", "python", "-m", "train", "-np", "7", "--lr", "0.1"]
            )
            == 0
        )
        (job,) = started
        assert (job.np, list(job.command)) == (
            2,
            ["python", "-m", "train", "-np", "7", "--lr", "0.1"],
        )
        assert job.display.verbose

    def test_or_after_two_dashes(
        self, started: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "-odd-name").touch(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert cli.main(["run", "--num-proc=3", "--", "-odd-name", "--", "x"]) == 0
        assert list(started[0].command) == ["-odd-name", "--", "x"]
        assert started[0].np == 3

    def test_bounds_make_a_job_elastic(
        self, started: list[Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert cli.main(["run", "--min-np", "2", "--show-ranks", "0,9", "true"]) == 0
        assert cli.main(["run", "-np", "3", "-H", "localhost:4", "--max-np", "4", "true"]) == 0
        monkeypatch.setenv("FARANDOLE_MIN_NP", "2")
        assert cli.main(["run", "--host-discovery-script", "find.sh", "true"]) == 0
        plans = [job.elastic for job in started]
        options = [plan.options for plan in plans if plan is not None]
        assert options == [ElasticOptions(2, 2), ElasticOptions(3, 3, 4), ElasticOptions(2, 2)]
        assert [job.np for job in started] == [2, 3, 2]
        assert started[0].display.show_ranks == (0, 9)

    @pytest.mark.parametrize(
        ("flags", "values"),
        [
            ("--max-np 4", ("-np", "--min-np")),
            ("--min-np 4 --max-np 2", ("min_np=4", "max_np=2")),
            ("--min-np 2 -H a:2 --host-discovery-script x", ("a:2", "x")),
            ("--min-np 2 --max-np 4 --show-ranks 4", ("4", "0 to 3")),
        ],
    )
    def test_contradicting_bounds_are_refused(
        self,
        started: list[Job],
        capsys: pytest.CaptureFixture[str],
        flags: str,
        values: tuple[str, ...],
    ) -> None:
        assert cli.main(["run", *flags.split(), "true"]) == 2
        assert mentions(capsys.readouterr().err, *values)
        assert not started

    def test_every_setting_has_its_flag(self, started: list[Job]) -> None:
        values = {int: "3", float: "2.5", str: "x"}
        special = {each.name: each.choices[-1] for each in settings_of(Settings) if each.choices}
        special |= {
            "autotune_gaussian_process_noise": "0.5",
            "codec": "topk:0.01",
            "cooldown_range": "10:100",
            "preemption_notice": "file:x",
            "strategy": "diloco:8",
        }
        flags: list[str] = []
        for each in settings_of(Settings):
            flags += (
                [each.flag]
                if each.kind is bool
                else [each.flag, special.get(each.name, values[each.kind])]
            )
        assert cli.main(["run", "-np", "3", *flags, "true"]) == 0
        settings = started[0].settings
        for each in settings_of(Settings):
            plain = {int: int(3 * each.scale), float: 2.5, bool: True, str: "x"}[each.kind]
            wanted = each.kind(special[each.name]) if each.name in special else plain
            assert getattr(settings, each.name) == wanted, each.name

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("--codec topk:9", "codec='topk:9'"),
            (
                "--strategy local_sgd:0",
                "--strategy local_sgd:0: local_sgd: every='0' must be a whole number, at least 1",
            ),
            ("--strategy gosip", "strategy 'gosip'"),
            (
                "--strategy gossip_async --codec sign",
                "--codec sign has nothing to compress with strategy='gossip_async:",
            ),
            (
                "--strategy gossip --codec sign",
                "with strategy='gossip:",
            ),
            (
                "--strategy ps --codec sign",
                "with strategy='ps:1",
            ),
        ],
    )
    def test_invalid_strategies_are_refused_before_the_start(
        self, given: str, message: str, started: list[Job], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["run", "-np", "2", *given.split(), "true"]) == 2
        assert message in capsys.readouterr().err
        assert not started

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                "--timeline-all-ranks",
                "farandole: --timeline-all-ranks does nothing without --timeline-filename\n",
            ),
            (
                "--autotune-log-file a.csv --autotune-warmup-samples 1",
                (
                    "farandole: --autotune-log-file, --autotune-warmup-samples do nothing without"
                    " --autotune\n"
                ),
            ),
            (
                (
                    "--timeline-all-ranks --timeline-filename DYNAMIC --autotune"
                    " --autotune-log-file a.csv"
                ),
                "",
            ),
        ],
    )
    def test_a_flag_without_effect_is_reported(
        self, given: str, message: str, started: list[Job], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["run", "-np", "2", *given.split(), "true"]) == 0
        assert capsys.readouterr().err == message
        assert len(started) == 1

    @pytest.mark.parametrize(
        "given",
        ["-np 2", "-np2", "-np=2", "-n 2", "-n2", "-n=2", "--np 2", "--np=2", "--num-proc 2"],
    )
    def test_the_number_of_processes_is_given_as_elsewhere(
        self, given: str, started: list[Job]
    ) -> None:
        assert cli.main(["run", *given.split(), "-v", "true"]) == 0
        assert (started[0].np, list(started[0].command), started[0].display.verbose) == (
            2,
            ["true"],
            True,
        )

    def test_a_misspelt_script_is_named_with_its_neighbour(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "train.py").touch()
        (tmp_path / "tool").touch(0o755)
        monkeypatch.chdir(tmp_path)
        assert cli.main(["run", "-np", "2", sys.executable, "trian.py"]) == 2
        assert mentions(capsys.readouterr().err, "'trian.py'", str(tmp_path), "'train.py'")
        assert cli.main(["run", "-np", "2", sys.executable, "src/train.py"]) == 2
        assert mentions(capsys.readouterr().err, "'src/train.py'", str(tmp_path))
        assert cli.main(["run", "-np", "2", "tool"]) == 2
        assert mentions(capsys.readouterr().err, "./tool")
        assert cli.main(["run", "-np", "2", "python train.py"]) == 2
        assert mentions(capsys.readouterr().err, "train.py", "command")

    def test_a_flag_wins_over_the_environment(
        self, started: list[Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
        monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "8")
        assert cli.main(["run", "-np", "1", "--cycle-time-ms", "1.0", "true"]) == 0
        assert (started[0].settings.cycle_time, started[0].settings.cache_capacity) == (1.0, 8)

    def test_a_fraction_of_a_mebibyte(self, started: list[Job]) -> None:
        assert cli.main(["run", "-np", "1", "--fusion-threshold-mb", "0.5", "true"]) == 0
        assert started[0].settings.fusion_threshold == 1 << 19

    def test_variables_of_a_rank_are_not_read_for_a_new_job(
        self, started: list[Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in PATIENT:
            monkeypatch.delenv(name)
        monkeypatch.setenv("FARANDOLE_RANK", "no number")
        monkeypatch.setenv("HOROVOD_SIZE", "neither")
        assert cli.main(["run", "-np", "1", "true"]) == 0, "it is not even read"
        assert started[0].settings == Settings()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ("", "-np "),
            ("true", ": farandole run -np 2 true"),
            (
                "train.py -v",
                (": farandole run -np 2 python train.py -v"),
            ),
            ("-np 2", "the command to run is missing"),
            ("-np 2 --", "the command to run is missing"),
            ("-np", "-np needs a value; see farandole run --help"),
            ("-np -- true", "-np needs a value"),
            ("--output-dir -np 2 true", "--output-dir needs a value"),
            ("-np 1e3 true", "-np '1e3' must be a whole number >= 1, or auto"),
            (
                "\u2014np 2 true",
                "options begin with - or --",
            ),
            ("-np 2 \u2013\u2013verbose true", "begins with a long dash"),
            ("-np 2 --version", "did you mean 'farandole --version'?"),
            (
                "-np 2 --verbose True python x.py",
                "'True' does not exist: options like --verbose",
            ),
            (
                "-np 2 LR=1 python x.py",
                ": LR=1 farandole",
            ),
            (
                "-np 2 cd /tmp",
                ": farandole run -np N bash -c",
            ),
            ("-np 0 true", "np=0 must be >= 1"),
            ("-np -3 true", "np=-3 must be >= 1"),
            ("-np two true", "-np 'two' must be a whole number >= 1"),
            ("-np 2.5 true", "-np '2.5' must be a whole number >= 1"),
            ("-np 2 --output-dri x true", "'--output-dri'; did you mean '--output-dir'?"),
            ("-np 2 --out x true", "'--out'"),
            (
                "-np 2 -x FOO=1 true",
                ("'-x'; every rank inherits the variables of this shell: NAME=value farandole run"),
            ),
            (
                "-np 2 -H @localhost:2 true",
                "'@localhost:2'",
            ),
            ("--nproc_per_node=2 true", "'--nproc_per_node'; did you mean '-np'?"),
            ("-np 2 --output_dir x true", "'--output_dir'; did you mean '--output-dir'?"),
            ("python train.py", ": farandole run -np 2 python train.py"),
            (
                "4 python train.py",
                " 4: farandole run -np 4 python train.py",
            ),
            (
                "python train.py -np 3 --lr 1",
                ": farandole run -np 3 python train.py --lr 1",
            ),
            (
                "python train.py -np3",
                ": farandole run -np 3 python train.py",
            ),
            (
                "python train.py --np=3",
                ": farandole run -np 3 python train.py",
            ),
            ("-np 2 pyhton train.py", "did you mean 'python"),
            ("-np 2 setup.cfg", "'setup.cfg'"),
            (
                "-np 2 train.py --lr 1",
                ": farandole run -np N python train.py --lr 1",
            ),
            (
                "-np 2 python",
                "standard input",
            ),
            (
                "-np 2 python3 -u - --epochs 3",
                "'python3 -u - --epochs 3'",
            ),
            (
                "-np 2 -H h1:2 python /dev/fd/63",
                " /dev/fd/63, ",
            ),
            ("-np 2 python /no/such/train.py", "'/no/such/train.py'"),
            ("-np 2 /etc/passwd", "chmod +x /etc/passwd"),
            ("-np 2 /etc", "'/etc' is a folder"),
            ("-np 2 --cycle-time-ms=-- true", "--cycle-time-ms needs a value"),
            ("-np 2 --verbose=1 true", "ignored explicit argument '1'"),
            (
                "-np 2 --cycle-time-ms soon true",
                "--cycle-time-ms='soon' must be a number",
            ),
            (
                "-np 2 --cache-capacity 1.5 true",
                "--cache-capacity='1.5' must be a whole number",
            ),
            ("-np 2 --fusion-threshold-mb x true", "--fusion-threshold-mb='x' must be"),
            ("-np 2 --start-timeout -1 true", "--start-timeout=-1.0 must be in [0.001, 1e+09]"),
            (
                "-np 2 --transport carrier-pigeon true",
                "--transport='carrier-pigeon' is not a valid choice; choose one of auto, shm, tcp",
            ),
            (
                "-np 2 --launcher lcal true",
                (
                    "unknown launcher 'lcal' (known: auto, local, ssh, spark, mpi, slurm); did you mean"
                    " 'local'?"
                ),
            ),
            ("-np 2 -H a true", "Invalid host input"),
            (
                "-np 3 -H localhost:2 true",
                "Requested more processes (3) than there are available slots (2)",
            ),
            ("-np 2 --launcher local -H elsewhere:2 true", "on this machine only"),
            ("-np 1 --output-dir /dev/null/x true", "--output-dir='/dev/null/x' cannot be used"),
        ],
    )
    def test_mistakes(self, arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["run", *arguments.split()]) == 2
        shown = capsys.readouterr()
        assert text in shown.err
        assert shown.err.startswith("farandole: ")
        assert len(shown.err.splitlines()) == 1, "one clear message"
        assert shown.out == ""

    def test_an_empty_word_in_the_place_of_the_program(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["run", "-np", "2", "", "train.py"]) == 2
        assert mentions(capsys.readouterr().err, "first word", "command")

    @pytest.mark.parametrize(
        "words", [("--hostfile", ""), ("--output-dir=",), ("--config-file", ""), ("--launcher=",)]
    )
    def test_a_variable_that_is_not_set(
        self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It would start a different job: on this machine, without files."""
        assert cli.main(["run", "-np", "1", *words, "true"]) == 2
        name = words[0].rstrip("=")
        assert capsys.readouterr().err.startswith(f"farandole: the value of {name} is empty")

    def test_help_lists_flags_and_values_within_the_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        assert cli.main(["run", "--help"]) == 0
        text = capsys.readouterr().out
        assert all(each.flag in text for each in settings_of(Settings))
        assert all(choice in text for each in settings_of(Settings) for choice in each.choices)
        assert "--output-dir" in text
        assert ": auto, local, ssh, spark" in text
        assert "example: farandole run -np 2 python train.py" in text
        assert max(map(len, text.splitlines())) <= 80
        assert all(f"\n{each.group}:\n" in text for each in settings_of(Settings))

    def test_the_flags_are_these(self) -> None:
        """A new flag is a decision, so it is also written here."""
        names = {name for action in run.parser()._actions for name in action.option_strings}
        assert names == {each.flag for each in settings_of(Settings)} | {
            "-np",
            "-n",
            "--np",
            "--num-proc",
            "-H",
            "--hosts",
            "--hostfile",
            "--launcher",
            "--config-file",
            "--output-dir",
            "--show-ranks",
            "--prefix-timestamp",
            "-v",
            "--verbose",
            "-h",
            "--help",
        }


class TestOthers:
    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == farandole.__version__
        assert farandole.__version__[0].isdigit()

    @pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
    def test_help(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(arguments) == 0
        assert "farandole run -np N" in capsys.readouterr().out

    @pytest.mark.parametrize("command", [*cli.COMMANDS, "help run"])
    def test_every_command_has_help_with_an_example(
        self, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        with contextlib.suppress(SystemExit):  # of the benchmarks' parser
            assert (
                cli.main([*command.split(), "--help"] if " " not in command else command.split())
                == 0
            )
        text = capsys.readouterr().out
        assert text.startswith("usage: farandole ")
        assert "farandole " in text.partition("\nexample: ")[2]

    def test_as_a_module(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "farandole", "-v"], capture_output=True, text=True, timeout=200
        )
        assert (done.returncode, done.stdout.strip()) == (0, farandole.__version__)

    def test_a_misspelt_option_of_a_small_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["env", "--jsn"]) == 2
        assert cli.main(["--verison"]) == 2
        first, second = capsys.readouterr().err.splitlines()
        assert mentions(first, "'--jsn'", "'--json'", "farandole env --help")
        assert "did you mean '--version'?" in second

    def test_output_that_cannot_be_written_is_one_line(self) -> None:
        command = [sys.executable, "-m", "farandole", "--help"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=200
            )
        assert done.returncode == 2
        assert (
            done.stderr
            == "farandole: the output cannot be written: [Errno 28] No space left on device\n"
        )

    def test_settings_fit_a_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert cli.main(["config"]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        assert (
            "--cycle-time-ms  (default: 1 ms)\n    FARANDOLE_CYCLE_TIME\n    HOROVOD_CYCLE_TIME\n"
            in text
        )

    def test_without_the_word_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["-np", "2", "python", "train.py"]) == 2
        assert cli.main(["python", "train.py"]) == 2
        assert cli.main(["train.py"]) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 3
        assert all(line.endswith(": farandole run -np 2 python train.py") for line in said)

    def test_a_misspelt_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["rnu", "-np", "2"]) == 2
        assert mentions(capsys.readouterr().err, "'rnu'", "'run'")

    def test_config_shows_every_setting(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["config"]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown = settings_of(Settings)
        assert len(lines) == len(shown) + 1
        for each, line in zip(shown, lines[1:], strict=True):
            assert each.flag in line
            assert each.variable in line
            assert each.horovod in line
            assert line.endswith(each.doc)
            assert each.unit in line

    def test_config_takes_no_arguments(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["config", "x"]) == 2
        assert mentions(capsys.readouterr().err, "'x'", "option")

    def test_bench_passes_its_arguments_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        fake = type(sys)("benchmarks.__main__")
        fake.main = lambda argv: len(argv)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "benchmarks", type(sys)("benchmarks"))
        monkeypatch.setitem(sys.modules, "benchmarks.__main__", fake)
        assert cli.main(["bench", "allreduce", "--np", "2"]) == 3

    def test_bench_outside_of_a_clone(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setitem(sys.modules, "benchmarks", None)
        monkeypatch.setitem(sys.modules, "benchmarks.__main__", None)
        assert cli.main(["bench"]) == 2
        assert mentions(capsys.readouterr().err, "pip install -e", "'.[bench]'")


class TestPublicNames:
    def test_are_these(self) -> None:
        assert set(farandole.__all__) <= set(dir(farandole))
        for name in farandole.__all__:
            assert getattr(farandole, name) is not None

    def test_unknown_names_of_farandole_raise(self) -> None:
        with pytest.raises(AttributeError, match=mentioning("'runn'")):
            farandole.runn  # noqa: B018

    def test_the_command_line_imports_nothing_heavy(self) -> None:
        code = "import sys, farandole.cli.run, farandole.job.launch.driver; print(*sys.modules)"
        command = [sys.executable, "-c", code]
        loaded = subprocess.run(
            command, capture_output=True, text=True, timeout=200, check=True
        ).stdout
        assert not {
            "numpy",
            "cloudpickle",
            "psutil",
            "rich",
            "asyncio",
            "importlib.metadata",
        } & set(loaded.split())


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_an_unsupported_system_fails_at_import(system: str) -> None:
    code = f"import sys; sys.platform = {system!r}; import farandole.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert mentions(done.stderr.splitlines()[-1], "ImportError", "Linux", repr(system), "WSL 2")


class TestRegistry:
    def test_built_in(self) -> None:
        assert registry.names("launcher")[0] == "local"
        assert registry.load("launcher", "local").name == "local"
        assert registry.best("launcher", JobRequest(2)).name == "local"

    def test_a_launcher_of_another_distribution(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = tmp_path / "other-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: other\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[farandole.launchers]\nmoon = other_launcher:Moon\nmars = no_such:Mars\n"
        )
        (tmp_path / "other_launcher.py").write_text(
            "class Moon:\n    name = 'moon'\n    def affinity(self, request): return 2\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        assert registry.names("launcher")[-2:] == ["mars", "moon"]
        assert registry.load("launcher", "moon").name == "moon"
        with pytest.raises(SettingsError, match=mentioning("'mars'", "'no_such'")):
            registry.load("launcher", "mars")


def test_prediction_without_pyarrow_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(["predict", "--model", "m.pt", "--input", "in.parquet", "--output", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "farandole: farandole predict needs pyarrow, which cannot be imported here"
    )
    assert said.endswith("pip install pyarrow\n")
