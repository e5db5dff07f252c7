"""``farandole.run`` in a notebook: functions of its cells, output in the cell, inside the kernel's
event loop.
"""

from __future__ import annotations

import re
from base64 import b64decode

import pytest

from tests.kits.notebook import EXAMPLES, executed, outputs, printed, results

pytestmark = pytest.mark.slow

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

CELLS = [
    "import os, farandole\nfactor = 10",
    """
class Result:
    def __init__(self, value):
        self.value = value

def train(x):
    print("training", x)
    return Result(factor * x + int(os.environ["HOROVOD_RANK"]))
""",
    (
        "results = farandole.run(train, (4,), np=2)\n[(type(each) is Result, each.value) for each"
        " in results]"
    ),
    """
try:
    farandole.Runner(np=2).run(lambda: 1 / 0)
except farandole.errors.JobFailedError as error:
    print(error)
""",
    """
def draw():
    import matplotlib.pyplot as plt
    plt.plot([1, 2, 3])
    plt.show()
    plt.plot([3, 2, 1])   # left open: shown when the function returns
    return len(plt.get_fignums())

farandole.run(draw, np=2)
""",
    """
def known():
    display("shown", 5)
    return get_ipython(), exit()

farandole.run(known, np=1)
""",
    "farandole.run(lambda: (type(get_ipython()).__name__, quit.__name__), np=1)",
    """
import time
def fail():
    time.sleep(2.5)  # until there is a status
    return {}["label"]

farandole.run(fail, np=2)
""",
]


def test_cells_run_on_two_ranks() -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS]
    )
    notebook.cells[-1].metadata["tags"] = ["raises-exception"]
    nbclient.NotebookClient(
        notebook, timeout=500, startup_timeout=300, kernel_name="python3"
    ).execute()

    def stream(cell: int, name: str) -> str:
        outputs = notebook.cells[cell].outputs
        return "".join(
            each["text"]
            for each in outputs
            if each["output_type"] == "stream" and each["name"] == name
        )

    assert sorted(stream(2, "stdout").splitlines()) == [
        "[0]<stdout>:training 4",
        "[1]<stdout>:training 4",
    ]
    assert notebook.cells[2].outputs[-1]["data"]["text/plain"] == "[(True, 40), (True, 41)]"
    assert "failed: ZeroDivisionError: division by zero" in stream(3, "stdout")
    assert stream(3, "stderr") == ""
    *shown, opened = [each["data"] for each in notebook.cells[4].outputs if "data" in each]
    figures = [each["image/png"] for each in shown if "image/png" in each]  # among them, the status
    assert opened["text/plain"] == "[1, 1]"
    assert [b64decode(each)[:4] for each in figures] == [b"\x89PNG"] * 2  # rank 0's alone
    assert stream(5, "stdout").splitlines() == ["[0]<stdout>:shown", "[0]<stdout>:5"]
    assert notebook.cells[5].outputs[-1]["data"]["text/plain"] == "[None]"  # it has ended by exit()
    assert notebook.cells[6].outputs[-1]["data"]["text/plain"] == "[('NoneType', 'exit')]"
    shown = [
        each["data"]["text/plain"]
        for each in notebook.cells[-1].outputs
        if each["output_type"] == "display_data"
    ]
    assert shown[0].startswith("failed, 0:0")
    (error,) = [each for each in notebook.cells[-1].outputs if each["output_type"] == "error"]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert "farandole.run(fail, np=2)" in text
    assert 'return {}["label"]' in text
    assert "KeyError: 'label'" in text
    ours = [line for line in text.splitlines() if "farandole/" in line]
    assert len(ours) <= 5, text


def test_the_torch_notebook_trains_equally_on_two_ranks() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    notebook = executed(EXAMPLES / "torch_notebook.ipynb")
    assert float(re.findall(r"2 process\(es\): test accuracy ([\d.]+)%", printed(notebook))[0]) > 90
    assert "True" in results(notebook)
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
