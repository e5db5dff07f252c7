"""What a stage needs of Keras's backend: the files that are named for one have it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import keras

if TYPE_CHECKING:
    from farandole.base.types import Array


class Passed(NamedTuple):
    """What one micro batch has become in the layers of a stage."""

    inputs: Any
    outputs: Any
    mask: Any  # Keras's, of the outputs; None: there is none
    # the sum of those that the layers add (add_loss, regularisers); None: there are none
    losses: Any
    tape: Any = None  # TensorFlow's


class Computation(Protocol):
    """The layers of one stage, and the gradients of a batch by their weights."""

    def forward(self, inputs: Any, mask: Any, *, training: bool, watch: bool) -> Passed:
        """``watch``: there is to be a gradient by the inputs, too. With ``training``, ``backward``
        must follow.
        """

    def backward(self, passed: Passed, gradient: Any, share: float) -> Any:
        """Add the gradients by the weights. ``gradient``: of the loss by the outputs, or None;
        ``share``: the factor of ``passed.losses`` in the loss. The gradient by the inputs; None if
        there is none.
        """

    def loss(
        self, outputs: Sequence[Any], masks: Sequence[Any], of: Callable[[Any], Any]
    ) -> tuple[Any, Any, Any]:
        """All outputs of the last stage as one, the loss ``of`` them, and its gradient by them:
        None if it is made of what layers add alone.
        """

    def joined(self, outputs: Sequence[Any], masks: Sequence[Any]) -> Any:
        """All outputs as one tensor."""

    def step(self, optimizer: Any) -> None:
        """Let the optimizer step with the gradients, which are gone then."""

    def forget(self) -> None:
        """Throw away the gradients that were added so far."""


def on_backend(layers: Any, *, eager: bool) -> Computation:
    """``eager``: nothing is compiled."""
    module = importlib.import_module(f"farandole.keras.pipeline.{keras.backend.backend()}")
    return cast(Computation, module.LayersOfStage(layers, eager=eager))


def total(losses: Sequence[Any]) -> Any:
    """The sum of additional losses, as Keras adds them to a loss; None if there are none."""
    if not losses:
        return None
    return keras.ops.sum(
        [keras.ops.sum(keras.ops.cast(loss, keras.config.floatx())) for loss in losses]
    )


def mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, masks: Sequence[Any]) -> Any:
    """``tensor``, with the masks of its parts, if they have some."""
    if masks and all(mask is not None for mask in masks):
        tensor._keras_mask = keras.ops.concatenate(masks, axis=0)
    return tensor


def array_of(tensor: Any, dtype: str) -> Array:
    array: Array = keras.ops.convert_to_numpy(tensor).astype(dtype, copy=False)
    return array
