"""The counts of a PyTorch training in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import farandole
from farandole.job.runs.folder import RUN_VARIABLE, RunFolder
from farandole.jobs import metrics
from farandole.torch.recording import rows_of


def train(*, wrap: bool) -> None:
    """Train three epochs of ten batches of four, with a validation after each."""
    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 2)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.25)
    if wrap:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    data = torch.utils.data.TensorDataset(torch.randn(38, 40), torch.zeros(38, dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, _ in loader:
                model(x)


@pytest.mark.parametrize("wrap", [False, True])
def test_steps_samples_and_exchanges(wrap: bool, tmp_path: Path) -> None:
    run = RunFolder(str(tmp_path / "e_1_00000000"))
    farandole.run(train, kwargs={"wrap": wrap}, np=2, env={RUN_VARIABLE: run.path})
    for rank in (0, 1):
        last = metrics.last_values(run, rank, automatic=True)
        assert last["training/steps"] == 30
        assert last["training/samples"] == 3 * 38
        assert last["training/epochs"] == 3
        assert last["training/learning_rate"] == 0.25
        assert (last["training/exchange_bytes"] > 30 * 4 * 82) is wrap
    (settings, *others) = (each["values"] for each in metrics.logged(run, "training"))
    assert settings == {
        "framework": "torch",
        "optimizer": "SGD",
        "learning_rate": 0.25,
        "batch_size": 4,
    }
    codes = [each["code"] for each in metrics.logged(run, "finding")]
    assert codes == (["FAR006"] if wrap else ["FAR012"])
    assert others == ([] if wrap else [{"models": 1}])


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (torch.zeros(3, 2), 3),
        ([torch.zeros(3, 2), torch.zeros(3)], 3),
        ({"x": torch.zeros(5, 1), "name": "a"}, 5),
        ((["a", "b"], {"x": torch.zeros(2)}), 2),
        (["a", "b"], 2),
        (torch.tensor(1.0), 0),
        ((), 0),
        (None, 0),
    ],
)
def test_rows_of_a_batch(batch: Any, rows: int) -> None:
    assert rows_of(batch) == rows
