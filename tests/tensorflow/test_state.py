"""Equal first weights, objects, hooks, elastic states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from tests.kits.messages import mentioning
from tests.run_job import job

v1 = tf.compat.v1


def test_variables_of_any_type_are_broadcast() -> None:
    def body(rank: int) -> None:
        values = [
            np.float32(1.5),
            np.array([True, False]),
            np.uint32(7),
            np.float16(2.0),
            np.zeros((0, 3), np.float32),
            np.complex64(1 + 2j),
            np.int64(-3),
            np.array(b"text"),
            np.array([b"more", b""]),
        ]
        variables = [tf.Variable(value if rank == 0 else tf.zeros_like(value)) for value in values]

        def check() -> None:
            for variable, value in zip(variables, values, strict=True):
                np.testing.assert_array_equal(variable.numpy(), value)
                variable.assign(tf.zeros_like(variable) if rank == 1 else variable)

        hvd.broadcast_variables(variables, root_rank=0)
        check()

        @tf.function(autograph=False)
        def function() -> None:
            hvd.broadcast_variables(variables, root_rank=0, inplace=True)

        function()
        check()
        got = hvd.broadcast_(variables[:2], 0)
        assert [each.numpy().tolist() for each in got] == [1.5, [True, False]]
        got = tf.function(lambda: hvd.broadcast_(variables[:1], 0), autograph=False)()
        assert got[0].numpy() == 1.5
        layer = tf.keras.layers.Dense(2)
        layer.build((None, 3))
        hvd.broadcast_variables(layer.variables, root_rank=1)
        kernels = hvd.allgather_object(np.asarray(layer.kernel).tolist())
        assert kernels[0] == kernels[1]
        with pytest.raises(ValueError, match=mentioning("variables")):
            hvd.broadcast_variables(variables[: rank + 1], root_rank=0)
        with pytest.raises(RuntimeError, match=mentioning("eager")):
            hvd.broadcast_global_variables(0)

    job(2, body)


@pytest.mark.parametrize("resource", [True, False])
def test_v1_variables_are_broadcast_by_an_operation_or_a_hook(resource: bool) -> None:
    def body(rank: int) -> Any:
        found = []
        with tf.Graph().as_default():
            weight = v1.get_variable("w", initializer=[rank + 1.0], use_resource=resource)
            text = v1.get_variable("text", initializer="ab"[rank], use_resource=resource)
            v1.train.get_or_create_global_step()
            operation = hvd.broadcast_global_variables(1)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(operation)
                found.append(session.run(weight).tolist())
                assert session.run(text) == b"b"
            with v1.train.MonitoredTrainingSession(
                hooks=[hvd.BroadcastGlobalVariablesHook(1)]
            ) as session:
                found.append(session.run(weight).tolist())
        return found

    assert job(2, body) == [[[2.0], [2.0]]] * 2


def test_objects() -> None:
    def body(rank: int) -> Any:
        sent = hvd.broadcast_object({"from": rank}, root_rank=1)
        again = hvd.broadcast_object_fn(root_rank=0, name="again")([rank])
        return sent, again, hvd.allgather_object("ab"[rank])

    assert job(2, body) == [({"from": 1}, [0], ["a", "b"])] * 2


def test_states_go_back_and_follow_rank_0() -> None:
    def body(rank: int) -> None:
        weight = tf.Variable([rank + 1.0])
        state = hvd.elastic.TensorFlowState([weight], epoch=rank, seen=[rank])
        weight.assign([9.0])
        state.epoch, state.seen = 5, [5]
        state.restore()
        assert (weight.numpy().tolist(), state.epoch, state.seen) == ([rank + 1.0], rank, [rank])
        state.sync()
        assert (weight.numpy().tolist(), state.epoch, state.seen) == ([1.0], 0, [0])
        weight.assign([4.0])
        state.epoch = 1
        state.commit()
        weight.assign([8.0])
        state.restore()
        assert (weight.numpy().tolist(), state.epoch) == ([4.0], 1)
        called = []
        state.register_reset_callbacks([lambda: called.append(1)])
        state.on_reset()
        assert called == [1]
        if rank == 0:
            state.on_hosts_updated(1.0, 2)
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()

    job(2, body)


def test_a_state_of_a_session() -> None:
    def body(rank: int) -> None:
        with tf.Graph().as_default(), v1.Session() as session:
            weight = v1.get_variable("w", initializer=[rank + 1.0])
            session.run(v1.global_variables_initializer())
            state = hvd.elastic.TensorFlowState(epoch=rank)
            state.sync()
            assert (session.run(weight).tolist(), state.epoch) == ([1.0], 0)
            weight.load([7.0], session)
            state.restore()
            assert session.run(weight).tolist() == [1.0]
        with tf.Graph().as_default(), pytest.raises(ValueError, match=mentioning("session")):
            hvd.elastic.TensorFlowState([])

    job(2, body)


def test_a_state_of_a_keras_model() -> None:
    def body(rank: int) -> None:
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        with pytest.raises(ValueError, match=mentioning("Model", "built")):
            hvd.elastic.TensorFlowKerasState(model)
        model.build((None, 2))
        state = hvd.elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD(0.1), batch=rank)
        state.sync()
        weights = hvd.allgather_object([np.asarray(each).tolist() for each in model.weights])
        assert weights[0] == weights[1]
        assert state.batch == 0

    job(2, body)


def test_interrupted_syncs_do_not_mix_two_commits() -> None:
    def body(rank: int) -> Any:
        def lose() -> None:
            raise HorovodInternalError("rank 0 was lost")

        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        variable = tf.Variable(float(rank))
        model.layers[0].kernel.assign([[float(rank)]])
        states = [
            hvd.elastic.TensorFlowState(variables=[variable], epoch=rank),
            hvd.elastic.TensorFlowKerasState(model, epoch=rank),
        ]
        for state in states:
            state._receive = lose
            with pytest.raises(HorovodInternalError):
                state.sync()
        received = float(variable), float(model.layers[0].kernel[0, 0])
        for state in states:
            state.restore()
        return received, float(variable), float(model.layers[0].kernel[0, 0]), states[0].epoch

    assert job(2, body) == [((0.0, 0.0), 0.0, 0.0, 0), ((0.0, 0.0), 1.0, 1.0, 1)]
