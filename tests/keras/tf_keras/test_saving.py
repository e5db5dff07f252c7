"""States and files of models of Keras 2, and training that resumes from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farandole.tensorflow as hvd
from tests.keras.tf_keras.models import BATCH, STEPS, data, gan, make
from tests.kits.messages import mentioning, mentions
from tests.run_job import job

pytest.importorskip("tf_keras", reason="tf_keras is not installed")


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_models_own_optimizers_begin_with_the_roots_state(old: bool, passes: int) -> None:
    """Only rank 0 resumed from a checkpoint of a GAN; the other rank's second optimizer has not
    stepped yet.
    """

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback
        from farandole.keras.tf_keras.slots import make_slots

        kind = tf_keras.optimizers.legacy.SGD if old else tf_keras.optimizers.SGD
        plain = [kind(0.1, momentum=0.9) for _ in range(2)]
        model = gan(
            [hvd.DistributedOptimizer(each, backward_passes_per_step=passes) for each in plain]
        )
        if rank == 0:
            for part, optimizer in zip(
                model.parts, [model.first, model.others["second"]], strict=True
            ):
                make_slots(optimizer, part.trainable_weights)
                for variable in optimizer.variables() if old else optimizer.variables:
                    variable.assign(variable + 1)
        x = np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]], np.float32) + rank
        model.fit(
            x,
            x,
            batch_size=1,
            shuffle=False,
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback(0)],
        )
        return [each.numpy() for part in model.parts for each in part.weights]

    zero, one = job(2, body)
    for mine, other in zip(zero, one, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_metrics_are_averaged_and_states_go_back() -> None:
    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import MetricAverageCallback

        logs = {
            "loss": rank + 1.0,
            "lr": rank + 0.5,
            "f1_score": np.array([rank, 0.5], np.float32),
            "a": 3,
        }
        MetricAverageCallback().on_epoch_end(0, logs)
        assert logs.pop("f1_score").tolist() == [0.5, 0.5]
        assert logs == {"loss": 1.5, "lr": rank + 0.5, "a": 3.0}
        model = make(rank)
        with pytest.raises(ValueError, match=mentioning("Model", "built")):
            hvd.elastic.TensorFlowKerasState(tf_keras.Sequential([tf_keras.layers.Dense(1)]))
        model.build((None, 3))
        state = hvd.elastic.TensorFlowKerasState(model, tf_keras.optimizers.Adam(), epoch=rank)
        state.sync()
        weights = hvd.allgather_object([each.tolist() for each in model.get_weights()])
        assert weights[0] == weights[1]
        model.set_weights([each + 1.0 for each in model.get_weights()])
        state.epoch = 5
        state.restore()
        assert ([each.tolist() for each in model.get_weights()], state.epoch) == (weights[0], 0)

    job(2, body)


@pytest.mark.parametrize("old", [True, False])
def test_a_state_before_the_first_step_keeps_its_momentum(old: bool) -> None:
    def body(rank: int) -> None:
        import tf_keras

        model = make(0)
        model.build((None, 3))
        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9)), "mse")
        state = hvd.elastic.TensorFlowKerasState(model)
        state.sync()
        rows = np.eye(3, dtype=np.float32)
        found = []
        for _ in range(2):
            model.fit(
                rows, model.predict(rows, verbose=0) + rank + 1, epochs=3, verbose=0, shuffle=False
            )
            found.append([each.tolist() for each in model.get_weights()])
            state.restore()
        assert found[0] == found[1]

    job(2, body)


@pytest.mark.parametrize("old", [True, False])
def test_a_state_has_the_gradients_that_wait_for_a_step(old: bool) -> None:
    """One of three passes is done at the commit; later ones must not count twice."""

    def body(rank: int) -> None:
        import tf_keras

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        rows = np.eye(3, dtype=np.float32)

        def made() -> Any:
            model = make(0)
            model.build((None, 3))
            optimizer = hvd.DistributedOptimizer(
                optimizers.SGD(0.1), backward_passes_per_step=3, sparse_as_dense=True
            )
            model.compile(optimizer, "mse")
            return model

        def train(model: Any, *passes: int) -> list[Any]:
            for number in passes:
                model.train_on_batch(rows * (number + 1), np.ones((3, 2)) * (rank + number))
            return [each.tolist() for each in model.get_weights()]

        expected, model = train(made(), 0, 1, 2), made()
        state = hvd.elastic.TensorFlowKerasState(model)
        train(model, 0, 1)
        state.restore()  # to before the first of all
        train(model, 0)
        state.commit()
        train(model, 1)
        state.restore()
        assert train(model, 1, 2) == expected
        state.restore()
        assert train(model, 1, 2) == expected

    job(2, body)


@pytest.mark.parametrize("old", [True, False])
def test_a_saved_model_continues_with_the_state_of_its_optimizer(old: bool, tmp_path: Path) -> None:
    """Keras itself restarts the optimizer, although the folder has its state."""
    folder = str(tmp_path / "model")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import allgather_object, load_model

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model = make(0)
        model.compile(hvd.DistributedOptimizer(optimizers.Adam(0.05)), "mse")
        words, targets = data(rank, 2)
        options = {"batch_size": BATCH // 2, "shuffle": False, "verbose": 0}
        model.fit(words, targets, **options)
        if rank == 0:
            model.save(folder, save_format="tf")
        allgather_object(None)
        again = load_model(folder)
        assert again.optimizer.iterations.numpy() == STEPS
        for each in (model, again):
            each.fit(words, targets, **options)
        for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)

    job(2, body)


def test_a_file_without_optimizer_state_is_reported(tmp_path: Path) -> None:
    """Keras 2 silently omits the state of an old optimizer."""
    file = str(tmp_path / "model.keras")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import load_model
        from tests.keras.programs import said

        model = make(0)
        model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.legacy.Adam(0.05)), "mse")
        model.save(file)
        with said() as messages:
            load_model(file)
            assert mentions(messages[0], "model.keras", "optimizer")

    job(1, body)


@pytest.mark.parametrize("ending", ["h5", "keras"])
def test_models_are_saved_and_resume(ending: str, tmp_path: Path) -> None:
    file = str(tmp_path / f"model.{ending}")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import allgather_object, load_model, save
        from farandole.keras.tf_keras.callbacks import (
            BestModelCheckpoint,
            BroadcastGlobalVariablesCallback,
        )

        optimizers = tf_keras.optimizers
        adam = optimizers.legacy.Adam if ending == "h5" else optimizers.Adam
        model = make(rank)
        model.compile(hvd.DistributedOptimizer(adam(0.05)), "mse")
        best = BestModelCheckpoint(monitor="loss")
        with pytest.raises(ValueError, match=mentioning("filepath")):
            best.on_train_begin()
        best.filepath = file
        words, targets = data(rank, 2)
        callbacks = [BroadcastGlobalVariablesCallback(0), *([best] if rank == 0 else [])]
        model.fit(words, targets, batch_size=BATCH // 2, verbose=0, callbacks=callbacks)
        allgather_object(None)
        plain = tf_keras.models.load_model(file, compile=True)
        assert type(plain.optimizer) is adam
        again = load_model(file)
        assert type(again.optimizer) is not adam
        assert again.optimizer.iterations.numpy() == STEPS
        # rank 0 alone loads, as in Horovod's examples, and the callback gives what it has to all
        if rank == 1:
            again = make(7)
            again.compile(hvd.DistributedOptimizer(adam(0.05)), "mse")
        for each, first in ((model, []), (again, [BroadcastGlobalVariablesCallback(0)])):
            # momentum and all, they take the same steps
            each.fit(
                words, targets, batch_size=BATCH // 2, shuffle=False, verbose=0, callbacks=first
            )
        for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
        sums = allgather_object([float(each.sum()) for each in again.get_weights()])
        assert sums[0] == sums[1]
        again.layers[-1].bias.assign_add([float(rank)] * 2)
        save(again, file)  # rank 0's
        assert [float(each.sum()) for each in load_model(file).get_weights()] == sums[0]

    job(2, body)


def test_custom_objects_may_make_distributed_optimizers(tmp_path: Path) -> None:
    """Their options count, as in programs for Horovod."""
    file = str(tmp_path / "model.h5")

    def body(rank: int) -> None:
        import tf_keras

        from farandole.keras.tf_keras import load_model

        class Mine(tf_keras.optimizers.SGD):  # type: ignore[misc]
            pass

        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
        model.compile(hvd.DistributedOptimizer(Mine(0.5)), "mse")
        model.save(file)
        again = load_model(
            file,
            custom_objects={
                "Mine": lambda **o: hvd.DistributedOptimizer(Mine(**o), backward_passes_per_step=3)
            },
        )
        assert again.optimizer._agg_helper.backward_passes_per_step == 3
        assert load_model(file, [Mine]).optimizer._agg_helper.backward_passes_per_step == 1

    job(1, body)


@pytest.mark.parametrize("where", ["one folder", "a folder each", "rank 0"])
def test_training_continues_everywhere_from_a_backup(where: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def body(rank: int) -> Any:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        words, targets = data(rank, 2)
        mine = f"{folder}/{rank}" if where == "a folder each" else folder

        def fit(epochs: int, backup: bool = True, *, seed: int = 0) -> Any:
            model = make(seed + rank)
            model.build((None, 3))
            model.compile(
                hvd.DistributedOptimizer(tf_keras.optimizers.SGD(0.1, momentum=0.9)), "mse"
            )
            callbacks = [BroadcastGlobalVariablesCallback(0)]
            if backup and (where != "rank 0" or rank == 0):
                callbacks.append(
                    tf_keras.callbacks.BackupAndRestore(mine, delete_checkpoint=epochs == 4)
                )
            history = model.fit(
                words, targets, BATCH // 2, epochs, verbose=0, callbacks=callbacks, shuffle=False
            )
            assert "_maybe_load_initial_counters_from_ckpt" not in model.__dict__
            return history.epoch, model.get_weights()

        whole, first = fit(4, backup=False), fit(2)
        if where == "a folder each" and rank == 1:  # it died before it had written
            shutil.rmtree(mine)
        return whole, first, fit(4, seed=5)

    for whole, first, rest in job(2, body):
        assert (whole[0], first[0], rest[0]) == ([0, 1, 2, 3], [0, 1], [2, 3])
        for mine, theirs in zip(rest[1], whole[1], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.glob("**/ckpt*"))


@pytest.mark.parametrize("old", [True, False])
def test_rank_0s_loaded_learning_rate_is_broadcast(old: bool) -> None:
    def body(rank: int) -> tuple[float, list[Any]]:
        import tf_keras

        from farandole.keras.tf_keras.callbacks import BroadcastGlobalVariablesCallback

        optimizers = tf_keras.optimizers.legacy if old else tf_keras.optimizers
        model = make(0)
        model.build((None, 3))
        # as a checkpoint says
        model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1 if rank else 0.01)), "mse")
        words, targets = data(rank, 2)
        model.fit(
            words, targets, batch_size=4, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)]
        )
        return float(model.optimizer.learning_rate), [each.tolist() for each in model.get_weights()]

    (rate, weights), other = job(2, body)
    assert rate == pytest.approx(0.01)
    assert other == (rate, weights)
