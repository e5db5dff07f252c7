"""The commands for runs, and the Python API, on runs of a small program."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import farandole
from farandole.cli import main
from farandole.errors import RunError, RunFailedError, SettingsError
from farandole.job.runs.home import RunsHome
from farandole.jobs import leftovers
from farandole.jobs.commands.gc import chosen
from farandole.jobs.commands.output import columns
from farandole.jobs.commands.submit import duration, size
from farandole.jobs.details import readable_time
from farandole.jobs.follow import LogReader
from farandole.jobs.references import find_run, listed
from tests.kits.jobs import runs_home

PROGRAM = """
import os, sys
rank = os.environ["HOROVOD_RANK"]
print("hello from", rank, sys.argv[1:])
os.makedirs("outputs/model", exist_ok=True)
open("outputs/model/weights" + rank, "w").write("w" * 2000)
sys.exit("no luck" if "fail" in sys.argv else 0)
"""


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunsHome]:
    """Yield a home with two completed runs and a failed one, oldest first."""
    path = tmp_path_factory.mktemp("jobs")
    (path / "source").mkdir()
    (path / "source" / "train.py").write_text(PROGRAM)
    with runs_home(path) as home:
        request = farandole.ScriptRun(
            str(path / "source"), "train.py", ["a", 1], ranks_per_node=2, tags={"color": "red"}
        )
        experiment = farandole.Experiment("first")
        experiment.submit(request).wait()
        other = farandole.ScriptRun(str(path / "source"), "train.py", ["b"], name="second name")
        farandole.Experiment("second").submit(other).wait()
        failing = farandole.ScriptRun(str(path / "source"), command="python train.py fail")
        farandole.Experiment("second").submit(failing).wait(check=False)
        yield home


Output = pytest.CaptureFixture[str]


def printed(output: Output, *arguments: str, status: int = 0) -> str:
    output.readouterr()
    assert main(list(arguments)) == status
    return output.readouterr().out


def ids(home: RunsHome) -> list[str]:
    return [row.run_id for row in listed(home)]


def test_runs_lists_them_from_new_to_old(module_home: RunsHome, capsys: Output) -> None:
    names = printed(capsys, "runs", "--ids").split()
    assert [name.split("_")[0] for name in names] == ["second", "second", "first"]
    table = printed(capsys, "runs")
    assert [line.split()[1] for line in table.splitlines()[1:]] == [
        "failed",
        "completed",
        "completed",
    ]
    assert printed(capsys, "runs", "--state", "failed", "--ids").split() == names[:1]
    assert printed(capsys, "runs", "--experiment", "first", "--ids").split() == names[2:]
    assert printed(capsys, "runs", "--tag", "color=red", "--ids").split() == names[2:]
    assert printed(capsys, "runs", "--tag", "color=blue", "--ids") == ""
    data = json.loads(printed(capsys, "runs", "--json", "-n", "1"))
    assert [(row["state"], row["ranks"]) for row in data] == [("failed", 1)]


def test_show_has_the_facts_of_a_run(module_home: RunsHome, capsys: Output) -> None:
    data = json.loads(printed(capsys, "show", "first", "--json"))
    assert data["state"] == "completed"
    assert data["ranks"] == 2
    assert data["tags"] == {"color": "red"}
    assert [each["path"] for each in data["artifacts"]] == ["model/weights0", "model/weights1"]
    assert "model/weights0" in printed(capsys, "show", "first")
    assert "failed" in printed(capsys, "show")


def test_odd_names_and_times_do_not_break_a_table() -> None:
    table = columns([("run", "name"), ("a", "x\n\x1b[31m<b>ü")])
    assert table.splitlines()[1:] == ["a    x\\n\\x1b[31m<b>ü"]
    assert [readable_time(seconds) for seconds in (-1e18, 1e300)] == ["?", "?"]


def test_logs_of_one_rank_and_of_all(module_home: RunsHome, capsys: Output) -> None:
    assert printed(capsys, "logs", "first", "--rank", "1") == "hello from 1 ['a', '1']\n"
    both = printed(capsys, "logs", "first")
    assert "hello from 0" in both
    assert "hello from 1" in both
    assert printed(capsys, "logs", "-f", "first", "--rank", "0").startswith("hello from 0")
    assert "no luck" in printed(capsys, "logs", "-f", "last", "--rank", "0", status=1)
    assert main(["logs", "last"]) == 0
    assert "no luck" in capsys.readouterr().err
    assert main(["logs", "first", "--rank", "2"]) == 2


def test_compare_shows_the_differences(module_home: RunsHome, capsys: Output) -> None:
    first, second = ids(module_home)[2], ids(module_home)[1]
    data = json.loads(printed(capsys, "compare", first, second, "--json"))
    assert data["runs"] == [first, second]
    assert data["differences"]["ranks"] == [2, 1]
    assert data["differences"]["command"] == ["python train.py a 1", "python train.py b"]
    assert "target" not in data["differences"]
    assert "ranks" in printed(capsys, "compare", first, second)
    assert main(["compare", first]) == 2


def test_a_run_is_found_by_id_prefix_name_or_path(module_home: RunsHome) -> None:
    newest, second, first = ids(module_home)
    assert find_run(module_home, "last").run_id == newest
    assert find_run(module_home, first[:-2]).run_id == first
    assert find_run(module_home, "second name").run_id == second
    assert find_run(module_home, "first").run_id == first
    with pytest.raises(SettingsError, match="seconde"):
        find_run(module_home, "seconde")


def test_a_run_as_an_object(module_home: RunsHome, tmp_path: Path) -> None:
    run = farandole.Run.get("first")
    assert run.status() == "completed"
    assert run.experiment == "first"
    assert run.artifacts() == ["model/weights0", "model/weights1"]
    assert Path(run.download("model/weights1", str(tmp_path))).stat().st_size == 2000
    assert os.listdir(run.download("model", str(tmp_path))) != []
    for path in ("../spec.json", "nothing"):
        with pytest.raises(RunError):
            run.download(path)
    assert run.logs(0) == "hello from 0 ['a', '1']\n"
    assert run.metrics() == {}
    assert "completed" in repr(run)
    html = run._repr_html_()
    assert run.id in html
    assert module_home.path not in html
    with pytest.raises(RunError):
        run.results()


def test_links_out_of_a_run_are_no_artifacts(home: RunsHome, tmp_path: Path) -> None:
    source, secret = tmp_path / "source", tmp_path / "secret"
    source.mkdir()
    secret.write_text("hidden")
    (source / "x.py").write_text(
        f"import os; os.makedirs('outputs/a'); os.symlink({str(secret)!r}, 'outputs/a/out');"
        " os.symlink('in', 'outputs/a/same'); open('outputs/a/in', 'w').write('seen');"
        f" os.symlink({str(tmp_path)!r}, 'outputs/folder')"
    )
    run = farandole.Experiment("e").submit(farandole.ScriptRun(str(source), "x.py")).wait()
    assert run.artifacts() == ["a/in", "a/same"]
    assert sorted(os.listdir(run.download("a", str(tmp_path / "copy")))) == ["in", "same"]
    for name in ("a/out", "folder", "folder/secret"):
        with pytest.raises(RunError):
            run.download(name)
    assert any("outputs/folder" in text for text in run.details()["messages"])
    assert oct(os.stat(home.path).st_mode)[-3:] == "700"


def test_unfinished_submissions_are_removed(home: RunsHome) -> None:
    old, new = (Path(home.runs, "e", f".new-{name}") for name in ("old", "new"))
    variables = Path(home.folder("variables"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    for name in ("old", "new"):
        (variables / f"e_1_{name}.json").write_text("{}")
    for path in (old, variables / "e_1_old.json"):
        os.utime(path, (0, 0))
    leftovers.remove(home)
    assert (old.exists(), new.exists()) == (False, True)
    assert os.listdir(variables) == ["e_1_new.json"]


def test_a_failed_run_raises_its_cause(module_home: RunsHome) -> None:
    run = farandole.Run.get("last")
    with pytest.raises(RunFailedError, match="no luck") as caught:
        run.wait()
    assert caught.value.run_id == run.id


def test_rerun_uses_the_snapshot(module_home: RunsHome, capsys: Output) -> None:
    before = ids(module_home)
    first = before[-1]
    again = printed(capsys, "rerun", first, "-f").split()[0]
    try:
        data = json.loads(printed(capsys, "show", again, "--json"))
        assert data["command"] == ["python", "train.py", "a", "1"]
        assert data["tags"]["rerun_of"] == first
    finally:
        assert "1 run" in printed(
            capsys, "gc", "--keep", "0", "--experiment", "first", "--dry-run"
        ) or ids(module_home)
        printed(capsys, "gc", "--keep", "1", "--experiment", "first")
    assert first not in ids(module_home)


@pytest.mark.slow
def test_an_exported_run_is_a_run_again(
    module_home: RunsHome, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    run_id = next(each for each in ids(module_home) if each.startswith("second_"))
    printed(capsys, "export", run_id, "-o", str(tmp_path / "run.tar.gz"))
    with tarfile.open(tmp_path / "run.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = str(tmp_path / run_id)
    assert json.loads(printed(capsys, "show", folder, "--json"))["state"] == "failed"
    with runs_home(tmp_path / "elsewhere"):
        assert main(["rerun", folder, "-f"]) == 1


def test_functions_return_their_results(home: RunsHome) -> None:
    @farandole.distributed(np=2, target="local", experiment="functions")
    def square(number: int) -> int:
        return number * number

    assert square(3) == 9
    assert square.distributed(4) == [16, 16]
    (run,) = farandole.Experiment("functions").runs()
    assert run.result() == 16
    wider = square.with_overrides(np=1)
    assert wider.distributed(5) == [25]


def test_stop_ends_all_runs(home: RunsHome, tmp_path: Path, capsys: Output) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "wait.py").write_text("import time; time.sleep(60)")
    for _ in range(2):
        printed(
            capsys,
            "submit",
            "--source",
            str(source),
            "--cores",
            "64",
            "--grace-seconds",
            "1",
            "--",
            "python",
            "wait.py",
        )
    table = printed(capsys, "stop", "--all")
    assert [line.split()[1] for line in table.splitlines()] == ["canceled", "canceled"]
    assert main(["stop"]) == 2


def test_submit_prints_one_id(home: RunsHome, tmp_path: Path, capsys: Output) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(PROGRAM)
    made = printed(
        capsys,
        "submit",
        "--source",
        str(source),
        "--name",
        "a b",
        "--tag",
        "x=y",
        "--json",
        "--time-limit",
        "5m",
        "--strategy",
        "local_sgd:8",
        "--",
        "python",
        "train.py",
        "--epochs",
        "3",
    )
    data = json.loads(made)
    assert data["name"] == "a b"
    assert data["tags"] == {"x": "y"}
    assert data["settings"] == {"strategy": "local_sgd:8"}
    assert data["command"][1:] == ["train.py", "--epochs", "3"]
    farandole.Run.get(data["run_id"]).wait()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--nodes", "two", "python", "x.py"],
        ["--memory", "much", "python", "x.py"],
        ["--input", "data", "python", "x.py"],
        ["--input", "data:fuse=x", "python", "x.py"],
        ["--tag", "x", "python", "x.py"],
        ["--after", "nothing", "python", "x.py"],
        ["--target", "moon", "python", "-c", "1"],
        ["--bogus", "python", "x.py"],
    ],
)
def test_wrong_arguments_are_one_line(home: RunsHome, arguments: list[str], capsys: Output) -> None:
    assert main(["submit", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("farandole: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["submit", "sweep"])
@pytest.mark.parametrize(
    ("arguments", "cure"),
    [(["--bogus", "x"], ""), (["--retries"], ""), (["-x", "A=1"], "--env"), (["--host", "a"], "")],
)
def test_wrong_options_refer_to_the_help_of_the_command(
    home: RunsHome, command: str, arguments: list[str], cure: str, capsys: Output
) -> None:
    assert main([command, *arguments]) == 2
    error = capsys.readouterr().err
    assert f"see farandole {command} --help" in error
    assert "farandole run" not in error
    assert "--hosts" not in error
    assert cure in error


def test_targets_are_defined_checked_and_removed(home: RunsHome, capsys: Output) -> None:
    assert printed(capsys, "targets").split()[3] == "local"
    add = ["targets", "add", "small", "--kind", "local", "--option", "cores=2", "--max-nodes", "1"]
    assert "yes" in printed(capsys, *add)
    (found,) = [t for t in json.loads(printed(capsys, "targets", "--json")) if t["name"] == "small"]
    assert (found["options"], found["max_nodes"]) == ({"cores": "2"}, 1)
    assert json.loads(printed(capsys, "targets", "show", "small", "--json"))["obstacle"] == ""
    for wrong in (
        ["add", "x"],
        ["add", "x", "--kind", "moon"],
        ["add", "x", "--kind", "ssh"],
        ["add", "../x", "--kind", "local"],
        ["add", "x", "--kind", "local", "--option", "speed=9"],
        ["remove", "local"],
        ["show", "nothing"],
        ["show"],
    ):
        assert main(["targets", *wrong]) == 2
    printed(capsys, "targets", "remove", "small")
    assert "small" not in printed(capsys, "targets")


def test_sizes_and_times_are_read() -> None:
    assert [size("1"), size("2K"), size("1.5G"), size("1GiB")] == [1, 2048, 3 << 29, 1 << 30]
    assert [duration("90"), duration("2m"), duration("1.5h")] == [90, 120, 5400]


def test_gc_keeps_recent_and_active_runs(module_home: RunsHome) -> None:
    rows = listed(module_home)
    now = time.time()
    assert chosen(rows, now=now, older_than=3600) == []
    assert chosen(rows, now=now, keep=0, state="failed") == [
        row for row in rows if row.state == "failed"
    ]
    assert len(chosen(rows, now=now, keep=1)) == len(rows) - len({r.experiment for r in rows})
    assert chosen(rows, now=now + 7200, older_than=3600) == rows


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert LogReader(str(path), tail=2).read() == "line 98\nline 99\n"
    assert LogReader(str(path), tail=500).read().count("\n") == 100
    path.write_text("a\nb")
    assert LogReader(str(path), tail=1).read() == "b"
    assert LogReader(str(tmp_path / "none"), tail=1).read() == ""
