"""The notebook of the chest X-rays as jobs: an honest pair of runs, and a run with mistakes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from farandole.job.runs.folder import RunFolder
from farandole.jobs import metrics
from farandole.jobs.comparison import compare
from farandole.jobs.references import listed
from tests.kits.jobs import runs_home
from tests.kits.notebook import EXAMPLES, executed, results

pytestmark = pytest.mark.slow

for module in ("nbclient", "ipykernel"):
    pytest.importorskip(module)


def test_an_honest_and_a_mistaken_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("chest_xray_jobs.ipynb", "chest_xray.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    shutil.copytree(EXAMPLES / "chest_xray_jobs", tmp_path / "chest_xray_jobs")
    monkeypatch.chdir(tmp_path)
    with runs_home(tmp_path) as home:
        notebook = executed(Path("chest_xray_jobs.ipynb"))
        found = {row.name: RunFolder(row.path) for row in reversed(listed(home))}
        single, distributed, mistaken = found.values()
        fair, unfair = compare([single, distributed]), compare([single, mistaken])

    assert fair.equal is not None
    assert fair.equal.metric == "val_auc"
    assert fair.equal.value > 0.95
    for run in (single, distributed):
        assert len(metrics.series(run, "val_auc")[0]) < 12  # early stopping
    one, four = fair.measures
    assert (one.ranks, four.ranks, four.nodes) == (1, 4, 4)
    assert four.exchanges is True
    assert four.same_data is False
    assert one.samples == 480 * (one.epochs or 0)
    assert four.samples == 480 * (four.epochs or 0)
    about_machines = {"cores", "load"}
    lengths = {"samples"}  # early stopping decides them
    assert {each.code.value for each in fair.unfair} <= about_machines | lengths

    codes = [each["code"] for each in metrics.logged(mistaken, "finding")]
    assert codes == ["FAR028", "FAR027", "FAR012"]
    (early,) = (each for each in metrics.logged(mistaken, "finding") if each["code"] == "FAR012")
    assert "20 steps" in early["text"]
    reasons = {each.code.value: each for each in unfair.unfair}
    assert {"no-gradients-exchanged", "same-data-on-all-ranks", "samples"} <= set(reasons)
    assert "(3 instead of" in reasons["no-gradients-exchanged"].seen
    log = Path(mistaken.log_of(0)).read_text()
    assert re.findall(r"\[(FAR\d+)\]", log) == codes

    shown = results(notebook)
    assert "time to val_auc" in shown[0]
    assert "FAR012" in shown[1]
    assert str(tmp_path.parent) not in json.dumps(notebook)
