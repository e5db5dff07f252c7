"""A run as the last line of a cell, in a notebook that is executed and saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kits.jobs import runs_home
from tests.kits.notebook import executed, outputs

pytestmark = pytest.mark.slow

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

PROGRAM = """
import os, sys, time, farandole
print("password=hunter2", os.path.abspath("train.py"))
for step in range(50):
    farandole.log_metric("val_auc", step / 50, step)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
CELLS = [
    """
import os, farandole
go = os.environ["GO"]
run = farandole.Experiment("chest").submit(farandole.ScriptRun("source", "train.py", [go]))
""",
    "run",
    """
import threading, time
while not run.metrics():
    time.sleep(0.05)
open(go, "w").close()
run.wait()
for thread in threading.enumerate():
    if thread.name == "farandole-view":
        thread.join()
""",
    "from farandole.dashboard.widget import show_run\nshow_run(run)",
]


@pytest.mark.parametrize("widgets", [True, False])
def test_a_saved_notebook(widgets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    hidden = [] if widgets else ["import sys; sys.modules['anywidget'] = None"]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(each) for each in [*hidden, *CELLS]]
    nbformat.write(notebook, "a.ipynb")
    with runs_home(tmp_path):
        done = executed(Path("a.ipynb"))
    live, static = (each for each in outputs(done) if each.output_type == "display_data")
    for output in (live, static):
        found = output.data["text/html"]
        assert "completed" in found
        assert "val_auc" in found
        assert "<polyline" in found
        assert "train.py" in found
    saved = json.dumps(done)
    assert str(tmp_path) not in saved.replace(json.dumps(done.cells[0].source), "")
    assert "hunter2" not in saved
