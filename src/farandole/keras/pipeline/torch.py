"""The layers of a stage on PyTorch, where autograd adds up gradients itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from farandole.keras.pipeline.computation import Passed, mask_of, total, with_mask


class LayersOfStage:
    """PyTorch's ``Computation``."""

    def __init__(self, layers: Any, *, eager: bool) -> None:
        """``eager`` has no effect: nothing is compiled."""
        self._layers = layers

    def forward(self, inputs: Any, mask: Any, *, training: bool, watch: bool) -> Passed:
        inputs = keras.ops.convert_to_tensor(inputs)
        with torch.set_grad_enabled(training):
            if watch:
                inputs = inputs.detach().requires_grad_()
            outputs = self._layers(inputs, training=training, mask=mask)
            return Passed(inputs, outputs, mask_of(outputs), total(self._layers.losses))

    def backward(self, passed: Passed, gradient: Any, share: float) -> Any:
        roots, factors = [], []
        if gradient is not None and passed.outputs.requires_grad:
            roots.append(passed.outputs)
            factors.append(gradient)
        if passed.losses is not None and passed.losses.requires_grad:
            roots.append(passed.losses)
            factors.append(torch.full_like(passed.losses, share))
        if roots:
            torch.autograd.backward(roots, factors)
        return passed.inputs.grad if passed.inputs.requires_grad else None

    def loss(
        self, outputs: Sequence[Any], masks: Sequence[Any], of: Callable[[Any], Any]
    ) -> tuple[Any, Any, Any]:
        with torch.enable_grad():
            whole = torch.cat([each.detach() for each in outputs]).requires_grad_()
            loss = of(with_mask(whole, masks))
            found = (
                torch.autograd.grad(loss, [whole], allow_unused=True)
                if loss.requires_grad
                else [None]
            )
        return with_mask(whole.detach(), masks), loss.detach(), found[0]

    def joined(self, outputs: Sequence[Any], masks: Sequence[Any]) -> Any:
        return with_mask(torch.cat([each.detach() for each in outputs]), masks)

    def step(self, optimizer: Any) -> None:
        variables = list(self._layers.trainable_variables)
        gradients = [variable.value.grad for variable in variables]
        with torch.no_grad():
            optimizer.apply(gradients, variables)
        self.forget()

    def forget(self) -> None:
        for variable in self._layers.variables:  # layers may be frozen temporarily
            variable.value.grad = None
