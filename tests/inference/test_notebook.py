"""examples/spark_inference.ipynb runs from beginning to end."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.test_docs import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("PIL")


def test_the_example(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "spark_inference.ipynb", 4)
    client = nbclient.NotebookClient(
        notebook, timeout=500, startup_timeout=300, kernel_name="python3"
    )
    client.execute(env={**os.environ, "TMPDIR": str(tmp_path)})
    outputs = [each for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    said = "".join(
        each["text"]
        for each in outputs
        if each["output_type"] == "stream" and each["name"] == "stdout"
    )
    assert "<- chosen" in said
    assert (right := re.search(r"301 images, 300 predictions, (\d+)% right", said)), said
    assert int(right[1]) > 90
    assert re.search(r"0300-torn.png \| .*column 'content': decode failed on 40 bytes", said), said
