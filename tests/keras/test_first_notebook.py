"""The notebook for users of Keras: fit on one process and on two, callbacks and a plot."""

from __future__ import annotations

import re

import pytest

from tests.kits.notebook import EXAMPLES, executed, outputs, printed, results

pytestmark = pytest.mark.slow

for module in ("nbclient", "ipykernel", "matplotlib", "sklearn"):
    pytest.importorskip(module)


def test_keras_trains_equally_on_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.delenv("MNIST", raising=False)
    notebook = executed(EXAMPLES / "keras_notebook.ipynb")
    accuracies = [float(each) for each in re.findall(r"val_accuracy: ([\d.]+)", printed(notebook))]
    assert accuracies[-1] > 0.9
    assert "(True, True)" in results(notebook)
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
