"""States of TensorFlow and Keras 2 that are packed, and continue in another process."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from farandole.tensorflow.elastic import TensorFlowState  # noqa: E402
from tests.kits.messages import mentioning  # noqa: E402
from tests.kits.packed_state import check_continues  # noqa: E402


def test_variables_continue_from_a_packed_state() -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    state = TensorFlowState(variables, step=5)
    variables[0].assign([4.0, 5.0])
    state.save()
    packed = state.to_bytes(state.saved_values())
    fresh = [tf.Variable([0.0, 0.0]), tf.Variable(0)]
    other = TensorFlowState(fresh, step=0)
    other.from_bytes(packed)
    fresh[0].assign([9.0, 9.0])
    other.restore()
    assert ([each.numpy().tolist() for each in fresh], other.step) == ([[4.0, 5.0], 3], 5)
    with pytest.raises(ValueError, match=mentioning("1", "2")):
        TensorFlowState(fresh[:1], step=0).from_bytes(packed)
    with pytest.raises(ValueError, match=mentioning("(2,)", "(3,)")):
        TensorFlowState([tf.Variable([1.0] * 3), tf.Variable(0)], step=0).from_bytes(packed)


def test_a_model_of_keras_2_continues_from_a_packed_state() -> None:
    keras2 = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    from farandole.keras.tf_keras.elastic import KerasState

    def made() -> tuple[Any, Any]:
        model = keras2.Sequential([keras2.layers.Dense(1, input_shape=(2,))])
        model.compile(keras2.optimizers.SGD(0.1, momentum=0.9), "mse")
        return KerasState(model, epoch=0), model

    check_continues(made)
