from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from farandole import cli
from farandole.cli import completion
from farandole.cli.run import parser
from farandole.job.config import Settings
from farandole.job.config.fields import settings_of
from tests.kits.messages import mentions


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def bash_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "farandole.bash"
    commands = {name: completion._options(name) for name in cli.COMMANDS if name != "bench"}
    path.write_text(completion._bash(commands, zsh=False))
    return path


def completed(file: Path, *words: str, folder: Path | None = None) -> list[str]:
    """Return bash's completions of the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    state = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}"
    code = f"source {file}; {state}; _farandole; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", code], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.stderr == ""
    return done.stdout.split()


class TestBash:
    @pytest.mark.parametrize(
        ("line", "offers"),
        [
            ("farandole r", ["run"]),
            ("farandole co", ["config", "completion"]),
            ("farandole run --outp", ["--output-dir"]),
            ("farandole run --transport ", ["auto", "shm", "tcp"]),
            ("farandole run --transport = t", ["tcp"]),  # bash splits at the sign
            ("farandole run --launcher s", ["spark"]),
            ("farandole run -np 2 --verb", ["--verbose"]),
            ("farandole run -np a", ["auto"]),
            ("farandole run --log-level ", ["trace", "debug", "info", "warning", "error", "fatal"]),
            ("farandole run -np 2 pytho", ["python"]),
            ("farandole completion ", ["bash", "zsh", "fish"]),
            ("farandole env --", ["--help", "--json"]),
            ("farandole timeline m", ["merge"]),
        ],
    )
    def test_offers(self, bash_file: Path, line: str, offers: list[str]) -> None:
        assert set(offers) <= set(completed(bash_file, *line.split(" ")))

    def test_after_the_command_only_files(self, bash_file: Path, tmp_path: Path) -> None:
        (tmp_path / "--verbatim").touch()
        (tmp_path / "train.py").touch()
        line = ["farandole", "run", "-np", "2", "--overlap", "on", "python"]
        assert completed(bash_file, *line, "tra", folder=tmp_path) == ["train.py"]
        assert completed(bash_file, *line, "--verb", folder=tmp_path) == ["--verbatim"]
        assert completed(bash_file, *line[:6], "--", "x", "", folder=tmp_path) == [
            "--verbatim",
            "train.py",
        ]

    def test_the_value_of_an_option_is_not_the_command(
        self, bash_file: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "logs").mkdir()
        assert completed(bash_file, "farandole", "run", "--output-dir", "l", folder=tmp_path) == [
            "logs"
        ]
        line = ["farandole", "run", "--output-dir", "logs", "--autotune-l"]
        assert completed(bash_file, *line, folder=tmp_path) == ["--autotune-log-file"]
        (tmp_path / "key").touch()  # for the same setting of another command, too
        for command in ("run", "hosts"):
            line = ["farandole", command, "--ssh-identity-file", "k"]
            assert completed(bash_file, *line, folder=tmp_path) == ["key"]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_knows_every_flag_and_value(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    for name in (name for action in parser()._actions for name in action.option_strings):
        assert (completion._spelling(name) if shell == "fish" else name) in text
    assert all(" ".join(setting.choices) in text for setting in settings_of(Settings))
    assert mentions(text, "auto local", "ssh spark")
    if shutil.which(shell):
        done = subprocess.run(
            [shell, "-n"], input=text, capture_output=True, text=True, timeout=100
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zhs"]) == 2
    assert mentions(capsys.readouterr().err, "'zhs'", "'zsh'")
