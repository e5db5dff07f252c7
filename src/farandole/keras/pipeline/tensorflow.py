"""The layers of a stage on TensorFlow: one ``tf.function``, called under a tape for each micro
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole.keras.pipeline.computation import Passed, mask_of, total, with_mask


class LayersOfStage:
    """TensorFlow's ``Computation``."""

    def __init__(self, layers: Any, *, eager: bool) -> None:
        self._layers, self._eager = layers, eager
        self._call = self._run if eager else tf.function(self._run, reduce_retracing=True)
        self._gradients: list[Any] = []
        self._apply: tuple[Any, Callable[..., None]] | None = None
        self._applied: list[int] = []  # indices of the variables with gradients

    def _run(self, inputs: Any, mask: Any, training: bool) -> tuple[Any, Any, Any]:
        outputs = self._layers(inputs, training=training, mask=mask)
        return outputs, mask_of(outputs), total(self._layers.losses)

    def forward(self, inputs: Any, mask: Any, *, training: bool, watch: bool) -> Passed:
        inputs = tf.convert_to_tensor(inputs)
        if not training:
            outputs, mask, losses = self._call(inputs, mask, False)
            return Passed(inputs, outputs, mask, losses)
        with tf.GradientTape() as tape:
            if watch:
                tape.watch(inputs)
            outputs, mask, losses = self._call(inputs, mask, True)
        return Passed(inputs if watch else None, outputs, mask, losses, tape)

    def backward(self, passed: Passed, gradient: Any, share: float) -> Any:
        targets, factors = [], []
        if gradient is not None:
            targets.append(passed.outputs)
            factors.append(gradient)
        if passed.losses is not None:
            targets.append(passed.losses)
            factors.append(
                tf.fill(tf.shape(passed.losses), tf.constant(share, passed.losses.dtype))
            )
        variables = list(self._layers.trainable_variables)
        watched = [] if passed.inputs is None else [passed.inputs]
        found = passed.tape.gradient(targets, [*variables, *watched], factors) if targets else []
        if found:
            gradients = found[: len(variables)]
            self._gradients = (
                list(map(_plus, self._gradients, gradients)) if self._gradients else gradients
            )
        return (
            tf.convert_to_tensor(found[-1]) if watched and found and found[-1] is not None else None
        )

    def loss(
        self, outputs: Sequence[Any], masks: Sequence[Any], of: Callable[[Any], Any]
    ) -> tuple[Any, Any, Any]:
        whole = self.joined(outputs, masks)
        with tf.GradientTape() as tape:
            tape.watch(whole)
            loss = of(whole)
        gradient = tape.gradient(loss, whole)
        return whole, loss, None if gradient is None else tf.convert_to_tensor(gradient)

    def joined(self, outputs: Sequence[Any], masks: Sequence[Any]) -> Any:
        return with_mask(tf.concat(list(outputs), 0), masks)

    def step(self, optimizer: Any) -> None:
        gradients, self._gradients = self._gradients, []
        variables = list(self._layers.trainable_variables)  # layers may have been frozen since
        if (
            self._apply is None
            or self._apply[0] is not optimizer
            or self._applied != [*map(id, variables)]
        ):
            self._applied = [*map(id, variables)]

            def apply(gradients: Sequence[Any]) -> None:
                optimizer.apply(gradients, variables)

            self._apply = (
                optimizer,
                apply if self._eager else tf.function(apply, reduce_retracing=True),
            )
        self._apply[1](gradients)

    def forget(self) -> None:
        self._gradients = []


def _plus(one: Any, other: Any) -> Any:
    """Return the sum of two gradients; rows of embeddings are concatenated."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        values, indices = (
            tf.concat([one.values, other.values], 0),
            tf.concat([one.indices, other.indices], 0),
        )
        return tf.IndexedSlices(values, indices, one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)
