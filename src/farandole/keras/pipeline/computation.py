"""The interface between a stage and Keras's backend; files named for a backend implement it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import keras

if TYPE_CHECKING:
    from farandole.base.types import Array


class Passed(NamedTuple):
    """The results of a stage's layers for one micro batch."""

    inputs: Any
    outputs: Any
    mask: Any  # the outputs' Keras mask; None without one
    # the sum of losses that layers add (add_loss, regularizers); None without any
    losses: Any
    tape: Any = None  # TensorFlow's


class Computation(Protocol):
    """The layers of one stage, and the gradients of a batch with respect to their weights."""

    def forward(self, inputs: Any, mask: Any, *, training: bool, watch: bool) -> Passed:
        """Run the layers. ``watch``: a gradient with respect to the inputs is needed as well. After
        a call with ``training``, ``backward`` must follow.
        """

    def backward(self, passed: Passed, gradient: Any, share: float) -> Any:
        """Accumulate the gradients with respect to the weights, and return the gradient with
        respect to the inputs, or None.

        ``gradient``: of the loss with respect to the outputs, or None. ``share``: the factor of
        ``passed.losses`` in the loss.
        """

    def loss(
        self, outputs: Sequence[Any], masks: Sequence[Any], of: Callable[[Any], Any]
    ) -> tuple[Any, Any, Any]:
        """Return all outputs of the last stage as one tensor, the loss ``of`` them, and its
        gradient with respect to them; None if only losses added by layers count.
        """

    def joined(self, outputs: Sequence[Any], masks: Sequence[Any]) -> Any:
        """Return all outputs as one tensor."""

    def step(self, optimizer: Any) -> None:
        """Step the optimizer with the gradients, and drop them."""

    def forget(self) -> None:
        """Drop the gradients accumulated so far."""


def on_backend(layers: Any, *, eager: bool) -> Computation:
    """Return the computation for Keras's backend. ``eager``: do not compile."""
    module = importlib.import_module(f"farandole.keras.pipeline.{keras.backend.backend()}")
    return cast(Computation, module.LayersOfStage(layers, eager=eager))


def total(losses: Sequence[Any]) -> Any:
    """Return the sum of additional losses, as Keras adds them to a loss; None if there are none."""
    if not losses:
        return None
    return keras.ops.sum(
        [keras.ops.sum(keras.ops.cast(loss, keras.config.floatx())) for loss in losses]
    )


def mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, masks: Sequence[Any]) -> Any:
    """Return ``tensor`` with the masks of its parts, if they have masks."""
    if masks and all(mask is not None for mask in masks):
        tensor._keras_mask = keras.ops.concatenate(masks, axis=0)
    return tensor


def array_of(tensor: Any, dtype: str) -> Array:
    array: Array = keras.ops.convert_to_numpy(tensor).astype(dtype, copy=False)
    return array
