"""An estimator for PyTorch, and the plain loop for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

# makes a cache folder on import: here, not in the temporary folder of a test
import torch._dynamo

from farandole.estimators import TorchEstimator
from tests.estimators.tools import Pool

RATE, BATCH, EPOCHS = 0.1, 8, 3
functions = torch.nn.functional


def net(outputs: int = 1, inputs: int = 3) -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 4), torch.nn.Tanh(), torch.nn.Linear(4, outputs)
    )


def estimator(given_model: torch.nn.Module | None = None, **params: Any) -> TorchEstimator:
    model = net() if given_model is None else given_model
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9),
        "loss": "mse_loss",
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "random_seed": 5,
        "scale_lr": False,
        "verbose": 0,
        "backend": Pool(1),
    }
    if "num_proc" in params:
        del given["backend"]
    return TorchEstimator(**{**given, **params})


def weights(model: Any) -> np.ndarray:
    return np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])


def losses(model: Any, part: str = "train") -> list[float]:
    return [record[part]["loss"] for record in model.getHistory()]


def plain(
    data: Any,
    batch: int = BATCH,
    epochs: int = EPOCHS,
    rate: float = RATE,
    shuffle: bool = True,
    model: Any = None,
) -> Any:
    """Train in a plain loop on one process; return the model, and the loss of each epoch."""
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    reader, losses = data.numpy(batch, seed=5, shuffle=shuffle, rank=0, size=1), []
    for _ in range(epochs):
        total = 0.0
        for rows in reader:
            optimizer.zero_grad()
            x, y = torch.tensor(rows["x"]).float(), torch.tensor(rows["y"]).float()
            loss = functions.mse_loss(model(x).reshape(-1), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        losses.append(total / data.rows)
    return model, losses
