"""The widget's script in a browser: it draws the view, and shows names as text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from farandole.dashboard import widget

PAGE = """<!DOCTYPE html><meta charset="utf-8"><div id="cell"></div>
<script type="module">
SCRIPT
const views = VIEWS;
let view = views[0], changed = () => {};
const model = {get: () => view, on: (name, call) => { changed = call; }, off: () => { changed = null; }};
const leave = render({model, el: document.getElementById("cell")});
for (const each of views) { view = each; changed(); }
const shown = document.querySelector("polyline");
document.body.dataset.points = shown ? shown.getAttribute("points").split(" ").length : 0;
leave();
document.body.dataset.left = String(changed === null);
</script>"""


@pytest.mark.slow
def test_the_script_draws_the_view(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed: make system-packages")
    view = {
        "id": "chest_1",
        "state": "running",
        "final": False,
        "cause": "",
        "facts": [["name", "<img src=x onerror=alert(1)>"]],
        "curves": [{"name": "val_auc", "x": [0, 1, 2], "y": [0.5, None, 0.75]}],
        "log": "epoch 1",
        "findings": ["<b>bold</b> [FAR012]"],
    }
    ended = {**view, "state": "failed", "cause": "out of memory", "log": "epoch 2"}
    script = (Path(widget.__file__).parent / "run.js").read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    page.write_text(
        PAGE.replace("SCRIPT", script.replace("export default { render };", "")).replace(
            "VIEWS", json.dumps([view, ended]).replace("</", "<\\/")
        )
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    shown = subprocess.run(
        [chromium, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    body = shown[shown.index("<body") :]
    cell = body[body.index('id="cell"') : body.index("<script")]
    assert 'data-points="2"' in body
    assert 'data-left="true"' in body
    assert 'data-state="failed"' in cell
    assert "out of memory" in cell
    assert "epoch 2" in cell
    assert "0.75" in cell
    assert "&lt;img src=x" in cell
    assert "&lt;b&gt;bold" in cell
    assert "epoch 1" not in cell
