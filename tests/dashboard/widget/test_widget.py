"""The view of a run: its data, its HTML, live updates, and what it must not contain."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import farandole
from farandole.dashboard.widget import live, show_run
from farandole.dashboard.widget.live import LiveView
from farandole.dashboard.widget.static import html_of, svg_of
from farandole.dashboard.widget.view import view_of
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import RunSpec
from farandole.job.runs.states import RunState
from farandole.job.tracking.tracker import FINDING, Tracker
from farandole.jobs.redaction import redacted
from farandole.jobs.submission import write_request
from tests.kits.jobs import runs_home
from tests.kits.worlds import until

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def home(tmp_path: Path) -> Any:
    with runs_home(tmp_path) as found:
        yield found


@pytest.fixture
def run(home: RunsHome) -> RunFolder:
    """Return an active run with odd names, a secret in its log, and a curve."""
    folder = RunFolder(os.path.join(home.runs, "chest", "chest_1_00000000"))
    folder.folder("user_logs")
    spec = RunSpec("chest", name=SCRIPT, command=("python", "train.py", "--api-token", "abc123"))
    write_request(folder, spec, home, source="")
    folder.record("state", state=RunState.RUNNING.value, attempt=1)
    tracker = Tracker(folder, 0)
    for step in range(1000):
        tracker.scalars({"val_auc": step / 1000, "loss<b>": float("nan")}, step)
    tracker.record(FINDING, code="FAR012", text=f"every rank trains alone {SCRIPT}")
    tracker.close()
    lines = [
        *(f"epoch {number}" for number in range(100)),
        'File "/home/someone/secret/train.py", line 3',
        f"saved to {folder.path}/outputs/model and https://storage/model?sig=abcdef&se=2",
    ]
    Path(folder.log_of(0)).write_text("\n".join(lines))
    return folder


def test_a_view_has_curves_log_and_findings(run: RunFolder) -> None:
    view = view_of(run)
    assert (view["id"], view["state"], view["final"]) == ("chest_1_00000000", "running", False)
    assert [each["name"] for each in view["curves"]] == ["val_auc", "loss<b>"]
    curve = view["curves"][0]
    assert len(curve["x"]) == len(curve["y"]) <= 240
    assert curve["y"][-1] == 0.999
    assert "epoch 99" in view["log"]
    assert "epoch 10\n" not in view["log"]
    assert "FAR012" in view["findings"][0]
    json.dumps(view, allow_nan=False)


def test_no_secret_and_no_path_outside_the_run(run: RunFolder) -> None:
    text = json.dumps(view_of(run))
    for hidden in ("abc123", "abcdef", "/home/someone", run.path, os.path.dirname(run.path)):
        assert hidden not in text
    assert ".../train.py" in text
    assert "outputs/model" in text


def test_names_are_texts_in_the_html(run: RunFolder) -> None:
    found = html_of(view_of(run))
    assert "<script" not in found
    assert "&lt;script&gt;" in found
    assert "loss&lt;b&gt;" in found
    ElementTree.fromstring(found)  # well-formed


@pytest.mark.parametrize(
    ("x", "y", "points"),
    [
        ([0, 1, 2], [1.0, None, 3.0], 2),
        ([5], [2.0], 1),
        ([0, 1], [1e300, -1e300], 2),
        ([], [], 0),
        ([0], [None], 0),
    ],
)
def test_curves_as_svg(x: list[int], y: list[float | None], points: int) -> None:
    found = svg_of({"name": "a", "x": x, "y": y})
    line = re.search(r"points='([^']*)'", found)
    places = line[1].split() if line else []
    assert len(places) == points
    for place in places:
        across, down = map(float, place.split(","))
        assert 0 <= across <= 320
        assert 0 <= down <= 120


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at /a/b/c.py:3", "at .../c.py:3"),
        ("/runs/x/outputs/model.txt", "outputs/model.txt"),
        ("https://user:pass@host/a/b?token=xyz&c=1", "https://host/a/b?token=***&c=1"),
        ("Authorization: Bearer abcdefgh12", "Authorization: Bearer ***"),
        ("--password hunter2 --lr 0.1", "--password *** --lr 0.1"),
        ("MY_API_KEY=hunter2", "MY_API_KEY=***"),
        ("tokens: 512, tokenizer=bert, design: x", "tokens: 512, tokenizer=bert, design: x"),
        ('{"password": "hunter2"}', '{"password": "***"}'),
        ("2/3 and a/b and 1/2/3", "2/3 and a/b and 1/2/3"),
        ("~/data/images", ".../images"),
        ("SECRET_KEY=hunter2 private_key: x1", "SECRET_KEY=*** private_key: ***"),
        ("/runs/x-2/a.txt and /runs/x/b", ".../a.txt and b"),
        ("/runs/x10/y/a.txt in /runs/x!", ".../a.txt in .!"),
    ],
)
def test_redaction(text: str, expected: str) -> None:
    assert redacted(text, "/runs/x") == expected


def test_a_live_view_follows_the_run(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY", 0.02)
    sent: list[dict[str, Any]] = []
    shown = LiveView(run, sent.append)
    assert shown.widget is not None
    assert "application/vnd.jupyter.widget-view+json" in shown.bundle()
    with open(run.log_of(0), "a") as file:
        file.write("\na new line")
    until(lambda: "a new line" in shown.widget.view["log"], "a change is shown")
    assert sent == []  # the widget has it
    run.finish(RunState.FAILED, cause="out of memory")
    until(lambda: bool(sent), "a change is shown")
    shown.close()
    (bundle,) = sent
    assert "out of memory" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in bundle
    assert shown.widget.view["state"] == "failed"


def test_without_anywidget_the_html_is_replaced(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.02)
    monkeypatch.setattr(live, "make_widget", lambda view: None)
    sent: list[dict[str, Any]] = []
    shown = LiveView(run, sent.append)
    assert sorted(shown.bundle()) == ["text/html", "text/plain"]
    with open(run.log_of(0), "a") as file:
        file.write("\na new line")
    until(lambda: any("a new line" in each["text/html"] for each in sent), "a change is shown")
    shown.close()


def test_html_for_databricks_and_text_for_terminals(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.finish(RunState.COMPLETED)
    found: list[str] = []
    show_run(farandole.Run(run), render_lib=found.append)
    assert "<svg" in found[0]
    assert found == [farandole.Run(run)._repr_html_()]
    show_run(farandole.Run(run))
    assert "state: completed" in capsys.readouterr().out


def test_a_view_continues_after_an_error(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [OSError("a stale file handle"), ValueError("no connection")]

    def once(folder: RunFolder) -> dict[str, Any]:
        if len(errors) == 2:
            raise errors.pop()
        return view_of(folder)

    def publish(bundle: dict[str, Any]) -> None:
        if errors:
            raise errors.pop()
        sent.append(bundle)

    monkeypatch.setattr(live, "EVERY", 0.02)
    sent: list[dict[str, Any]] = []
    shown = LiveView(run, publish)
    monkeypatch.setattr(live, "view_of", once)
    until(lambda: len(errors) == 1, "the first error")
    run.finish(RunState.FAILED, cause="out of memory")
    until(lambda: bool(sent), "the end is shown")
    shown.close()
    assert "out of memory" in sent[0]["text/html"]
