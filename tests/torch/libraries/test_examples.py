"""Accelerate, Lightning and Hugging Face's Trainer train on two ranks of the backend as one process
does.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
RUN = ["-m", "farandole.cli", "run", "-np"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def output_of(script: str, *arguments: str, launcher: list[str] = RUN, np: int = 2) -> str:
    """Return the output of the example, without the ranks' prefixes."""
    program = [
        *([sys.executable] if launcher is RUN else []),
        str(ROOT / "examples" / script),
        "--epochs",
        "3",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *launcher, str(np), *program, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=env, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"^\[\d+\]<\w+>:", "", done.stdout, flags=re.M)


def weights(output: str, np: int = 2) -> float:
    found = re.search(rf"^{np} processes on farandole: weights (-?[\d.]+)$", output, re.M)
    assert found, output
    return float(found[1])


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]


def load(script: str) -> Any:
    found = importlib.util.spec_from_file_location(
        script.removesuffix(".py"), ROOT / "examples" / script
    )
    assert found is not None
    assert found.loader is not None
    example: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    return example


def by_hand(script: str) -> tuple[float, list[float]]:
    """Return the sum of the weights and the losses of one process that trains in a plain loop with
    both ranks' batches.
    """
    import torch
    from torch.utils.data import DistributedSampler

    example = load(script)
    model = example.Regression().net if hasattr(example, "Regression") else example.make_model()
    optimizer, means = torch.optim.SGD(model.parameters(), lr=0.1), []
    # Lightning shuffles for training
    data, shuffle = example.data(), hasattr(example, "Regression")
    samplers = [DistributedSampler(data, 2, rank, shuffle=shuffle, seed=0) for rank in range(2)]
    for epoch in range(3):
        steps = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
        first, second = map(list, samplers)
        for begin in range(0, len(first), 8):
            rows, targets = data[first[begin : begin + 8] + second[begin : begin + 8]]
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(rows), targets)
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        means.append(sum(steps) / len(steps))
    return sum(float(each.detach().sum()) for each in model.parameters()), means


def test_accelerate() -> None:
    output = output_of("torch_accelerate.py")
    expected, means = by_hand("torch_accelerate.py")
    assert weights(output) == pytest.approx(expected, abs=2e-4)
    assert losses(output) == pytest.approx(means, abs=2e-5)


def test_lightning() -> None:
    """Under torchrun, where Lightning joins the job in its own way."""
    output = output_of("torch_lightning.py", launcher=TORCHRUN)
    expected, means = by_hand("torch_lightning.py")
    assert weights(output) == pytest.approx(expected, abs=2e-4)
    assert losses(output) == pytest.approx(means, abs=2e-5)


def test_trainer() -> None:
    """Compared with one process without a group, with batches of 16."""
    output = output_of("torch_trainer.py")
    from transformers import Trainer, TrainingArguments

    example = load("torch_trainer.py")
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            learning_rate=0.02,
            report_to="none",
            save_strategy="no",
            logging_strategy="epoch",
            disable_tqdm=True,
        )
        trainer = Trainer(example.make_model(), settings, train_dataset=example.Counting())
        trainer.train()
    expected = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    found = re.search(r"^losses ([\d. ]+)$", output, re.M)
    assert found, output
    assert [float(loss) for loss in found[1].split()] == pytest.approx(expected, abs=2e-3)
    assert expected[-1] < expected[0]
    assert weights(output) == pytest.approx(
        sum(float(each.sum()) for each in trainer.model.parameters()), abs=5e-3
    )
