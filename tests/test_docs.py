"""The documents are correct: their commands run, their tables are current, and their links work.

A fenced block is tested if a word after the language gives its role:

``python save=hello.py``   the block is a file for later blocks of the page
``python run``             the block runs, and prints the ``text output`` block that follows
``console run``            each line that begins with ``$`` runs in a shell; the other lines are its
                           output, in any order (as ranks print); ``...`` matches any text
``console run fails``      the last command exits with a code other than 0

``python -m tests.test_docs --write`` updates the tables: in docs/settings.md from the settings, in
README.md from docs/bench.json, which ``farandole bench --json docs/bench.json --plot
docs/bench.png`` writes, and so on.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import report, scale
from farandole.checks.catalogue import CATALOGUE
from farandole.job.config import Connection, Placement, Settings
from farandole.job.config.fields import Setting, settings_of
from farandole.job.runs.home import HOME_VARIABLE
from tests.kits.jobs import runs_home
from tests.kits.messages import mentioning

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, *sorted((ROOT / "docs").glob("*/*.md"))]
ELSEWHERE = [
    "tensorflow.md",
    "keras.md",
    "jax.md",
    "mxnet.md",
    "spark.md",
    "data.md",
    "estimators.md",
    "inference.md",
]  # run by tests/<framework>/test_docs.py
TASKS = [
    "start.md",
    "concepts.md",
    "run.md",
    "jobs.md",
    "environments.md",
    "tracking.md",
    "dashboard.md",
    "launching.md",
    "elastic.md",
    "elastic-exactness.md",
    "torch.md",
    "tensorflow.md",
    "keras.md",
    "jax.md",
    "mxnet.md",
    "numpy.md",
    "spark.md",
    "migration.md",
    "azureml.md",
    "data.md",
    "estimators.md",
    "inference.md",
    "timeline.md",
    "bench.md",
    "scaling.md",
    "settings.md",
    "architecture.md",
    "checks.md",
    "from_ddp.md",
    "torch-distributed.md",
]
SETTINGS = ROOT / "docs" / "settings.md"
CHECKS = ROOT / "docs" / "checks.md"
README, RUNS = ROOT / "README.md", ROOT / "docs" / "bench.json"
# made by python -m benchmarks.scale
SCALING, POINTS = ROOT / "docs" / "scaling.md", ROOT / "docs" / "scaling.json"
MEASURED = {  # of each page: the runs that farandole bench ... --json docs/... made
    "bench.md": {"bench": "bench.json"},
    "strategies-measurements.md": {
        "strategies": "strategies.json",
        "mnist": "learning_mnist.json",
        "batchnorm": "learning_batchnorm.json",
    },
    "data.md": {"data": "bench_data.json"},
    "inference.md": {"inference": "bench_inference.json", "tuning": "bench_tuning.json"},
}
BEGIN, END = "<!-- table: made by python -m tests.test_docs --write -->", "<!-- end of table -->"


class Block(NamedTuple):
    line: int
    words: list[str]
    text: str


def blocks(page: Path) -> list[Block]:
    found, inside, start, words = [], [], 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```") and not start:
            start, words, inside = number, line[3:].split(), []
        elif line.startswith("```"):
            found.append(Block(start, words, "\n".join(inside) + "\n"))
            start = 0
        else:
            inside.append(line)
    assert not start, f"{page.name}:{start}: the block is never closed"
    return found


def environment() -> dict[str, str]:
    """Return a shell environment in which ``farandole`` and ``python`` use this interpreter,
    outside of any job.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FARANDOLE_", "HOROVOD_")) or name == HOME_VARIABLE
    }
    # mpirun asks twice
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    # as installed by the page docs/azureml.md
    azureml = os.pathsep.join(
        filter(None, (str(ROOT / "compat-azureml" / "src"), kept.get("PYTHONPATH")))
    )
    found = {"PATH": path, "PYTHONPATH": azureml, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return {**kept, **found, **root}


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = environment()
    # an environment with only the packages tested there
    if not (Path(sys.executable).parent / "farandole").exists():
        own = folder / ".bin" / "farandole"
        own.parent.mkdir(exist_ok=True)
        own.write_text('#!/bin/sh\nexec python -m farandole.cli "$@"\n')
        own.chmod(0o755)
        env["PATH"] = f"{own.parent}:{env['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        text=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def matches(expected: str, line: str) -> bool:
    pattern = "*".join(re.sub(r"([\[\]*?])", r"[\1]", part) for part in expected.split("..."))
    return fnmatch.fnmatchcase(line.rstrip(), pattern.rstrip())


# Of programs with Gloo: its threads may hold a tensor when Python has ended
# (github.com/pytorch/pytorch/pull/179291).
ABORTED = "terminate called without an active exception"


def run_console(block: Block, folder: Path) -> None:
    commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    expected = [
        line for line in block.text.splitlines() if line.strip() and not line.startswith("$ ")
    ]
    done = shell("set -e\n" + "\n".join(commands), folder)
    if ABORTED in done.stdout:
        done = shell("set -e\n" + "\n".join(commands), folder)
    assert (done.returncode != 0) == ("fails" in block.words), done.stdout
    for line in expected:
        assert any(matches(line, each) for each in done.stdout.splitlines()), (
            f"no line {line!r} in:\n{done.stdout}"
        )


def run_python(block: Block, output: Block | None, folder: Path) -> None:
    (folder / "block.py").write_text(block.text)
    done = shell("python block.py", folder)
    assert done.returncode == 0, done.stdout
    if output is not None:
        assert done.stdout == output.text


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_frameworks_page_starts_with_a_complete_program(name: str) -> None:
    first, second = blocks(ROOT / "docs" / name)[:2]
    (saved,) = [word.removeprefix("save=") for word in first.words if word.startswith("save=")]
    assert "run" in second.words
    assert saved in second.text
    assert (ROOT / "tests" / Path(name).stem / "test_docs.py").is_file()


HERE = [page for page in PAGES if page.name not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_the_blocks_of_a_page_give_their_output(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def run_page(page: Path, tmp_path: Path) -> None:
    """Run the blocks of a page in an empty folder, with a home for their runs."""
    with runs_home(tmp_path.with_name(f"{tmp_path.name}-jobs")):
        _run_blocks(page, tmp_path)


def _run_blocks(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    every = blocks(page)
    for number, block in enumerate(every):
        following = every[number + 1] if number + 1 < len(every) else None
        saves = [word.removeprefix("save=") for word in block.words if word.startswith("save=")]
        if saves:
            (tmp_path / saves[0]).write_text(block.text)
        if "run" not in block.words:
            continue
        print(f"{page.name}:{block.line}")  # pytest shows it when the block fails
        if block.words[0] == "console":
            run_console(block, tmp_path)
        else:
            run_python(
                block, following if following and "output" in following.words else None, tmp_path
            )


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text()):
        link = target[0] or target[1]
        if "://" not in link:
            yield link


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as links name them."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_farandole_is_installed_from_a_clone(page: Path) -> None:
    """The package is not on an index yet: a package of that name there could be anyone's."""
    assert re.findall(r"pip install [^`\n]*\bfarandole\b", page.read_text()) == []


def test_every_task_has_its_page_and_the_readme_leads_to_it() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in TASKS:
        assert (ROOT / "docs" / name).is_file()
        assert f"docs/{name}" in readme
    index = (ROOT / "docs" / "api" / "index.md").read_text()
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        assert page.name == "index.md" or f"\n{page.stem}\n" in index


def test_the_checker_sees_a_wrong_output(tmp_path: Path) -> None:
    run_console(
        Block(1, ["console", "run"], "$ echo '[0] one'; echo two three\ntwo ...\n[0] one\n"),
        tmp_path,
    )
    with pytest.raises(AssertionError, match=mentioning("'three'")):
        run_console(Block(1, ["console", "run"], "$ echo one\nthree\n"), tmp_path)
    with pytest.raises(AssertionError):
        run_console(Block(1, ["console", "run"], "$ false\n"), tmp_path)
    run_console(Block(1, ["console", "run", "fails"], "$ false\n"), tmp_path)


def table() -> str:
    """Every setting, by the groups of --help, and what launchers set."""
    lines: list[str] = []
    for group in dict.fromkeys(each.group for each in settings_of(Settings)):
        found = [each for each in settings_of(Settings) if each.group == group]
        lines += [
            f"## {group.capitalize()}",
            "",
            "| flag | variable | Horovod's name | default | meaning |",
        ]
        lines.append("|---|---|---|---|---|")
        lines += [f"| `{each.flag}` | `{each.variable}` | {cells(each)} |" for each in found]
        lines.append("")
    lines += ["## What launchers set", "", "In each process, for programs to read:", ""]
    lines += ["| variable | Horovod's name | default | meaning |", "|---|---|---|---|"]
    internal = [*settings_of(Placement), *settings_of(Connection)]
    return "\n".join([*lines, *(f"| `{each.variable}` | {cells(each)} |" for each in internal)])


def findings_table() -> str:
    """Every kind of finding."""
    rows = [f"| {each.code} | {each.title} | {each.meaning} | {each.cure} |" for each in CATALOGUE]
    return "\n".join(["| code | found | meaning | cure |", "|---|---|---|---|", *rows])


def cells(each: Setting) -> str:
    """Return the cells common to all tables of settings."""
    value = each.shown(each.default)
    default = f"`{value}` {each.unit}".rstrip() if value else ""
    return f"{f'`{each.horovod}`' if each.horovod else ''} | {default} | {each.doc}"


# Rows of the README's table: a case of docs/bench.json, and the contender to compare with.
SPEED = {
    "allreduce: 64 KiB": "Gloo",
    "allreduce: 1 MiB": "Gloo",
    "allreduce: 16 MiB": "Gloo",
    "step: MLP, 4.2 M parameters": "DDP on Gloo",
    "step: conv net, 1.2 M parameters": "DDP on Gloo",
    "start: no-op job, 2 ranks": "torchrun",
}


def bench_table() -> str:
    """Return the README's table: medians of ours, of the usual choice and of Open MPI."""
    cases, content = report.read_json(RUNS)
    facts = content["machine"]
    by_title = {case.title: case for case in cases}
    lines = [
        "| float32, 2 ranks | Farandole | usual choice | Open MPI |",
        "|---|---|---|---|",
    ]
    for title, usual in SPEED.items():
        case = by_title[title]
        ours = case.median(report.OURS)
        cells = [title, report.seconds(ours)]
        for name in (usual, report.MPI):
            if name not in case.samples:
                cells.append("-")
                continue
            label = f"{name} " if name != report.MPI else ""
            median = case.median(name)
            cells.append(f"{label}{report.seconds(median)} ({median / ours:.1f}x)")
        lines.append(f"| {' | '.join(cells)} |")
    setting = f"{facts['usable_cores']} cores ({facts['processor']})"
    return f"`{' '.join(content['command'])}` on {setting}, medians:\n\n" + "\n".join(lines)


def with_table(page: str, new: str) -> str:
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"


def with_scaling(page: str) -> str:
    """docs/scaling.md with its tables as the model and the measured points have them."""
    for name, made in scale.TABLES.items():
        page = filled(page, name, made(json.loads(POINTS.read_text())))
    return page


def with_runs(name: str) -> str:
    """A page with the tables of the runs that it shows."""
    page = (ROOT / "docs" / name).read_text()
    for place, path in MEASURED[name].items():
        cases, content = report.read_json(ROOT / "docs" / path)
        facts = content["machine"]
        load = f"load {facts['load_before']:.1f} before the run"
        ranks = (
            f"{content['np']} ranks on "
            if name in ("bench.md", "strategies-measurements.md")
            else ""
        )
        setting = f"{ranks}{facts['usable_cores']} cores ({facts['processor']}), {load}."
        page = filled(
            page, place, f"`{' '.join(content['command'])}`: {setting}\n\n{report.text(cases)}"
        )
    return page


def filled(page: str, name: str, table: str) -> str:
    begin = f"<!-- {name}: made by python -m tests.test_docs --write -->"
    before, found, rest = page.partition(begin)
    assert found, f"the page has no place for {name}"
    return f"{before}{begin}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def test_predictions_are_those_of_the_model() -> None:
    assert SCALING.read_text() == with_scaling(SCALING.read_text()), (
        "run: python -m tests.test_docs --write"
    )


@pytest.mark.parametrize("name", MEASURED)
def test_the_numbers_of_a_page_are_those_of_the_runs(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == with_runs(name), (
        "run: python -m tests.test_docs --write"
    )


def test_the_numbers_of_the_readme_are_those_of_the_run() -> None:
    page = README.read_text()
    assert page == with_table(page, bench_table()), "run: python -m tests.test_docs --write"


def test_the_table_of_settings_is_current() -> None:
    page = SETTINGS.read_text()
    assert page == with_table(page, table()), "run: python -m tests.test_docs --write"


def test_the_table_of_findings_is_current() -> None:
    page = CHECKS.read_text()
    assert page == with_table(page, findings_table()), "run: python -m tests.test_docs --write"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for each in MEASURED:
        (ROOT / "docs" / each).write_text(with_runs(each))
    SCALING.write_text(with_scaling(SCALING.read_text()))
    SETTINGS.write_text(with_table(SETTINGS.read_text(), table()))
    CHECKS.write_text(with_table(CHECKS.read_text(), findings_table()))
    README.write_text(with_table(README.read_text(), bench_table()))
