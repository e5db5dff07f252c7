"""Models divided over workers, by layers or by matrices, train as on one worker."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.torch.distributed.tools import members

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = 4


def load(script: str) -> Any:
    found = importlib.util.spec_from_file_location(script.removesuffix(".py"), EXAMPLES / script)
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    return example


def on_one_process(example: Any) -> list[float]:
    import torch

    layers = (
        torch.nn.Sequential(*example.make_layers())
        if hasattr(example, "make_layers")
        else example.make_model()
    )
    optimizer, losses = torch.optim.SGD(layers.parameters(), lr=0.1), []
    for step in range(STEPS):
        rows, targets = example.batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(layers(rows), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pipelines(_: int) -> list[list[float]]:
    example = load("torch_pipeline.py")
    return [example.train(schedule, 2, 4, STEPS) for schedule in example.SCHEDULES]


def test_pipelines_train_as_one_process() -> None:
    """GPipe, 1F1B and interleaved, on 2 workers and on 2 x 2."""
    expected = on_one_process(load("torch_pipeline.py"))
    assert expected[-1] != pytest.approx(expected[0], rel=0.01)
    for n in (2, 4):
        for of_rank in members(n, pipelines):
            for losses in of_rank:
                assert losses == pytest.approx(expected, rel=1e-4)


def test_tensor_parallelism_with_and_without_data_parallelism() -> None:
    """On 2 workers and on 2 x 2."""
    expected = on_one_process(load("torch_tensor_parallel.py"))
    for n in (2, 4):
        for losses in members(n, lambda _: load("torch_tensor_parallel.py").train(2, STEPS)):
            assert losses == pytest.approx(expected, rel=1e-4)
