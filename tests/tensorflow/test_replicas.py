"""Replicas of a TensorFlow state: its trained variables."""

from __future__ import annotations

import pytest

from tests.kits.replicas import check_state
from tests.run_job import job

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def test_trained_variables_are_repaired() -> None:
    job(1, _body)


def _body(_: int) -> None:
    import tensorflow as tf

    import farandole.tensorflow as hvd

    weights = tf.Variable(tf.ones((3, 2)), name="weights")
    mean = tf.Variable(tf.ones(2), trainable=False, name="mean")
    state = hvd.elastic.TensorFlowState(variables=[weights, mean], step=0)
    check_state(state, ["weights"])
    assert len(state.replicas()) == 1
