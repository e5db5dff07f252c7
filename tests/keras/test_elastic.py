"""The saved state of a training holds every optimizer of the model, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.errors import HorovodInternalError
from tests.keras.backends import QUICK, on
from tests.keras.test_training import equal
from tests.run_job import job


def _of_keras_3(hvd: Any, *, distributed: bool = True) -> tuple[Any, list[Any], list[Any]]:
    """A model that holds optimizers in a dictionary and a list, with them and the variables of
    each.
    """
    import keras

    from tests.keras import programs as p

    wrap = hvd.DistributedOptimizer if distributed else (lambda optimizer: optimizer)
    model = p.dense(0)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), p.loss())
    adam, adagrad = wrap(keras.optimizers.Adam(0.1)), wrap(keras.optimizers.Adagrad(0.1))
    model.several, model.others = {"adam": adam}, [adagrad]
    return model, [adam, adagrad], [model.trainable_variables[:2], model.trainable_variables[2:]]


def _of_keras_2(
    hvd: Any, *, old: bool, distributed: bool = True
) -> tuple[Any, list[Any], list[Any]]:
    import tf_keras

    optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
    wrap = hvd.DistributedOptimizer if distributed else (lambda optimizer: optimizer)
    model = tf_keras.Sequential(
        [tf_keras.layers.Dense(4, input_shape=(6,)), tf_keras.layers.Dense(3)]
    )
    model.compile(optimizers.SGD(0.1, momentum=0.9), "mse")
    adam, adagrad = wrap(optimizers.Adam(0.1)), wrap(optimizers.Adagrad(0.1))
    model.several, model.others = {"adam": adam}, [adagrad]
    return model, [adam, adagrad], [model.trainable_variables[:2], model.trainable_variables[2:]]


def _goes_back(
    model: Any, optimizers: list[Any], variables: list[Any], state: Any, array: Callable[[Any], Any]
) -> Any:
    """Return the results of two steps: from the beginning, and after a restore to before the first
    and between them.
    """

    def step(number: float) -> list[Any]:
        for optimizer, mine in zip(optimizers, variables, strict=True):
            gradients = [array(np.full(tuple(each.shape), number, "float32")) for each in mine]
            optimizer.apply_gradients(zip(gradients, mine, strict=True))
        return [each.tolist() for each in model.get_weights()]

    first, second = step(1.0), step(2.0)
    state.restore()
    again = step(1.0)
    state.commit()
    step(5.0)
    state.restore()
    return (first, second), (again, step(2.0))


@pytest.mark.parametrize("distributed", [True, False])
def test_a_state_has_the_optimizers_that_the_model_holds(distributed: bool) -> None:
    def body(rank: int) -> Any:
        import keras

        import farandole.keras as hvd

        model, optimizers, variables = _of_keras_3(hvd, distributed=distributed)
        state = hvd.elastic.KerasState(model)
        return _goes_back(model, optimizers, variables, state, keras.ops.convert_to_tensor)

    for expected, found in on(QUICK, 2, body):
        assert found == expected


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("distributed", [True, False])
def test_the_optimizers_that_a_model_holds_are_synchronised(distributed: bool, built: bool) -> None:
    def body(rank: int) -> Any:
        import farandole.keras as hvd

        model, optimizers, variables = _of_keras_3(hvd, distributed=distributed)
        if rank == 0 or built:
            for optimizer, mine in zip(optimizers, variables, strict=True):
                optimizer.build(mine)
                for variable in optimizer.variables:
                    variable.assign(variable + (1 if rank == 0 else 2))
        hvd.elastic.KerasState(model).sync()
        return [np.asarray(each) for optimizer in optimizers for each in optimizer.variables]

    zero, one = on(QUICK, 2, body)
    equal(zero, one)
    assert len(zero) == 10


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("distributed", [True, False])
def test_a_keras_2_state_has_the_models_own_optimizers(old: bool, distributed: bool) -> None:
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")

    def body(rank: int) -> Any:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        model, optimizers, variables = _of_keras_2(hvd, old=old, distributed=distributed)
        state = hvd.elastic.TensorFlowKerasState(model)
        return _goes_back(model, optimizers, variables, state, tf.constant)

    for expected, found in job(2, body):
        assert found == expected


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("built", [True, False])
def test_own_optimizers_of_a_keras_2_model_are_synchronised(old: bool, built: bool) -> None:
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")

    def body(rank: int) -> Any:
        import farandole.tensorflow as hvd
        from farandole.keras.tf_keras.slots import make_slots, state_variables

        model, optimizers, variables = _of_keras_2(hvd, old=old)
        if rank == 0 or built:
            for optimizer, mine in zip(optimizers, variables, strict=True):
                make_slots(optimizer, mine)
                optimizer.learning_rate = 0.3 + rank
                for variable in state_variables(optimizer):
                    variable.assign(variable + (1 if rank == 0 else 2))
        hvd.elastic.TensorFlowKerasState(model).sync()
        return [each.numpy() for optimizer in optimizers for each in state_variables(optimizer)]

    zero, one = job(2, body)
    equal(zero, one)
    assert len(zero) >= 10


@pytest.mark.parametrize("old", [True, False])
def test_a_state_of_keras_2_has_the_learning_rate(old: bool) -> None:
    pytest.importorskip("tf_keras", reason="tf_keras is not installed")

    def body(rank: int) -> list[float]:
        import farandole.tensorflow as hvd

        model, _, _ = _of_keras_2(hvd, old=old)
        model.optimizer.learning_rate = 0.5 + rank
        state = hvd.elastic.TensorFlowKerasState(model)
        state.sync()
        found = [float(model.optimizer.learning_rate)]
        model.optimizer.learning_rate = 3.0
        state.restore()
        found.append(float(model.optimizer.learning_rate))
        _interrupt_sync(state, model.optimizer, 4.0 + rank)
        return [*found, float(model.optimizer.learning_rate)]

    assert job(2, body) == [[0.5, 0.5, 4.0], [0.5, 0.5, 5.0]]


def _interrupt_sync(state: Any, optimizer: Any, rate: float) -> None:
    """Lose rank 0 in a synchronization after the commit of a learning rate, and restore."""

    def lose() -> None:
        raise HorovodInternalError("rank 0 was lost")

    optimizer.learning_rate = rate
    state.save()
    state._receive = lose
    with pytest.raises(HorovodInternalError):
        state.sync()
    state.restore()
