"""Reports of runs as one file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.cli import main
from farandole.dashboard.report.as_html import html
from farandole.dashboard.report.as_markdown import bars, escaped, markdown
from farandole.dashboard.report.content import report
from farandole.dashboard.report.document import Chart, Line
from farandole.dashboard.report.svg import chart
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.journal import JournalWriter
from farandole.job.runs.states import RunState
from farandole.jobs.comparison import compare
from tests.kits.jobs import runs_home
from tests.kits.written_runs import waves, write, written_run

SCRIPT = "<script>alert(1)</script>"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\4\0\0\0\3\x08\2\0\0\0"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[RunsHome]:
    with runs_home(tmp_path) as found:
        yield found


@pytest.fixture
def run(home: RunsHome) -> RunFolder:
    folder = written_run(
        home,
        ranks=2,
        state=RunState.FAILED,
        cause=f'ValueError: {SCRIPT}\n  File "/home/someone/project/train.py", line 3',
        name=SCRIPT,
        command=("python", "/home/someone/train.py", "--api-key", "hunter2", SCRIPT),
        tags={SCRIPT: SCRIPT},
        parameters={
            "rate": 0.1,
            "data": "/mnt/secret/data.csv",
            SCRIPT: SCRIPT,
            "access_key": "hunter2",
        },
        metrics={"loss": waves(2000), SCRIPT: [1.0, float("nan"), 2.0], "one": [float("inf")]},
        outputs={"plot.png": PNG, "drawing.svg": f"<svg>{SCRIPT}</svg>".encode()},
        logs=[f"line {SCRIPT} ``` \x1b[31mred\x1b[0m\n".encode(), b""],
        source="/home/someone/project",
    )
    with JournalWriter(folder.metrics_of(0)) as journal:
        journal.append({"kind": "finding", "code": "FAR014", "text": f"no exchange {SCRIPT}"})
        table = {
            "kind": "table",
            "name": SCRIPT,
            "columns": [SCRIPT, "api_key", "file"],
            "rows": [[SCRIPT, "hunter2", "/mnt/secret/part.csv"]],
        }
        journal.append(table)
    return folder


class Tags(HTMLParser):
    """The elements of a page, and the addresses that it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "data", "action"):
                self.addresses.append(value or "")


def test_the_html_is_one_file_without_scripts(run: RunFolder) -> None:
    text = html(report([run]))
    tags = Tags(text)
    assert not tags.names & {"script", "link", "iframe", "object", "a", "form"}
    assert [address[:15] for address in tags.addresses] == ["data:image/png;"]
    assert text.count("<svg ") == 3
    assert "&lt;script&gt;" in text
    for wanted in ("FAR014", "ValueError", "loss", "rate", "host-a", run.run_id, "line "):
        assert wanted in text


def test_the_markdown_shows_names_unchanged(run: RunFolder) -> None:
    text = markdown(report([run]))
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    assert "<script" not in outside.replace("\\<script", "")
    assert "````text" in text  # the log has a fence of three
    for wanted in ("FAR014", "ValueError", "loss", "▁", run.run_id):
        assert wanted in text


def test_no_path_and_no_secret_is_in_a_report(run: RunFolder, home: RunsHome) -> None:
    for text in (html(report([run])), markdown(report([run]))):
        for path in ("/home/someone", "hunter2", "/mnt/secret", home.path, run.path):
            assert path not in text
        for name in ("train.py", "data.csv", "part.csv"):
            assert name in text


def test_a_comparison_has_no_secret_and_no_path(home: RunsHome) -> None:
    runs = [
        written_run(
            home,
            name=name,
            parameters={"api_key": f"hunter2 {name}", "data": f"/mnt/secret/{name}.csv"},
        )
        for name in ("one", "two")
    ]
    for text in (html(report(runs)), markdown(report(runs)), repr(compare(runs))):
        assert "two.csv" in text
        for hidden in ("hunter2", "/mnt/secret", home.path):
            assert hidden not in text


def test_several_runs_are_compared(home: RunsHome, run: RunFolder) -> None:
    other = written_run(home, name="other", metrics={"loss": [3.0, 1.0]}, parameters={"rate": 0.2})
    text = html(report([run, other]))
    first = text[text.index(">loss<") : text.index(">loss<") + 20_000].split("</figure>")[0]
    assert first.count('class="curve') == 2
    assert "0.2" in text
    assert "not comparable" in text  # one has failed
    assert len(re.findall(r"<h2>", text)) >= 3


def test_the_command_writes_a_file(
    run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert f"{run.run_id}.html" in capsys.readouterr().out
    assert (tmp_path / f"{run.run_id}.html").read_text().startswith("<!doctype html>")
    assert main(["report", run.run_id, "-o", "x.md"]) == 0
    assert (tmp_path / "x.md").read_text().startswith("# ")
    capsys.readouterr()
    assert main(["report", "--format", "markdown", "-o", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "x.md").read_text()
    assert main(["report", "-o", "none/x.html"]) == 2
    assert "none/x.html" in capsys.readouterr().err


def test_a_run_without_anything_has_a_report(home: RunsHome) -> None:
    queued = written_run(home, state=RunState.QUEUED)
    assert queued.run_id in html(report([queued]))
    assert "queued" in markdown(report([queued]))


def test_a_link_in_place_of_a_log_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    write(str(tmp_path / "secret"), b"hidden words")
    Path(run.log_of(0)).unlink()
    Path(run.log_of(0)).symlink_to(tmp_path / "secret")
    Path(run.file("outputs", "link.png")).symlink_to(tmp_path / "secret")
    assert "hidden words" not in html(report([run]))


@given(st.lists(st.floats(width=64), max_size=30), st.integers(0, 18))
def test_a_chart_of_any_numbers_is_valid_svg(values: list[float], shift: int) -> None:
    y = np.array(values, float)
    low = y[:0] if shift % 2 else np.where(np.isfinite(y), y, np.nan)
    line = Line("<a>", np.arange(len(y)) + 10**shift, y, low, low)
    root = ElementTree.fromstring(chart(Chart('<"name">', [line])))
    numbers = [
        float(number)
        for element in root.iter()
        for number in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", element.get("d", ""))
    ]
    assert all(-1 <= number <= 1000 for number in numbers)
    assert "nan" not in "".join(element.get("d", "") for element in root.iter())


@given(st.lists(st.floats(width=64), max_size=60))
def test_bars_show_any_numbers(values: list[float]) -> None:
    text = bars(np.array(values, float))
    assert len(text) == min(24, len(values))
    assert {*text} <= {*"▁▂▃▄▅▆▇█!"}


@given(st.text(max_size=40))
def test_escaped_text_stays_in_its_cell(text: str) -> None:
    found = escaped(text)
    assert "\n" not in found
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<`]", found)
