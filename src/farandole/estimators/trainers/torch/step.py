"""One step of PyTorch training: Farandole's, or the user's ``train_minibatch_fn``."""

from __future__ import annotations

from typing import Any

import torch

from farandole.errors import DataError


def minibatch(
    model: Any,
    optimizer: Any,
    transform_outputs: Any,
    loss_fn: Any,
    inputs: Any,
    labels: Any,
    sample_weights: Any,
) -> tuple[Any, Any]:
    """Take a step, with the arguments and result of the user's ``train_minibatch_fn``."""
    optimizer.zero_grad()
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


def one_number(loss: Any) -> Any:
    """Return the loss of a step. Raises DataError if it is not one number."""
    if loss is None or torch.as_tensor(loss).numel() != 1:
        raise DataError(
            f"train_minibatch_fn returned {type(loss).__name__} as the loss of its step, but must"
            " return the outputs and the loss, one number"
        )
    return torch.as_tensor(loss).detach().reshape(())


class Passes:
    """An optimizer that steps after every k-th batch, and after the last one."""

    def __init__(self, optimizer: Any, step: int, steps: int, passes: int) -> None:
        self._optimizer = optimizer
        self._first = step % passes == 0
        self._last = (step + 1) % passes == 0 or step + 1 == steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._first:
            self._optimizer.zero_grad(*args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.step(*args, **kwargs) if self._last else None
