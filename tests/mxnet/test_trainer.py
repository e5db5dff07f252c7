"""A trainer of MXNet: mistakes, states, process sets, and optimizers that it unwraps."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.mxnet.networks import (
    BATCH,
    OPTIMIZERS,
    STEPS,
    alone,
    assert_alike,
    backward,
    network,
    rows,
    trained,
    weights,
)
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_gradients_without_a_backward_pass_are_reported() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        net = network()
        used = net.collect_params()
        trainer = hvd.DistributedTrainer(used, "sgd", {"learning_rate": 0.1})
        backward(net, *rows(0, rank, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.allreduce_grads()
        trainer.update(BATCH)
        for parameter in used.values():
            parameter.grad()[:] = rank + 1
        with pytest.warns(
            UserWarning,
            match=mentioning("0", "backward()", "hvd.grouped_allreduce_"),
        ):
            trainer.allreduce_grads()

    job(2, fn)


def test_sparse_parameters_are_reported_with_the_cure() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        used = mx.gluon.ParameterDict()
        used.get("table", shape=(6, 2), stype="row_sparse", grad_stype="row_sparse", init="ones")
        used.initialize()
        text = ("'table'", "stype='row_sparse'")
        with pytest.raises(ValueError, match=mentioning(text)):
            hvd.broadcast_parameters(used)
        with pytest.raises(ValueError, match=mentioning(text)):
            hvd.DistributedTrainer(used, "sgd")

    job(2, fn)


def test_objects_other_than_mxnet_optimizers_are_refused() -> None:
    import farandole.mxnet as hvd

    trainer = mx.gluon.Trainer(network().collect_params(), "sgd")
    for wrong, text in (
        ("sgd", "mx.optimizer.create('sgd')"),
        (trainer, ("Trainer", "hvd.DistributedTrainer")),
    ):
        with pytest.raises(TypeError, match=mentioning(text)):
            hvd.DistributedOptimizer(wrong)


def test_states_are_saved_and_loaded(tmp_path: Any) -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        found = []
        for wrapped in (False, True):

            def make(net: Any, wrapped: bool = wrapped) -> Any:
                name, options = OPTIMIZERS["momentum"]
                if not wrapped:
                    return hvd.DistributedTrainer(net.collect_params(), name, dict(options))
                optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name, **options))
                return mx.gluon.Trainer(net.collect_params(), optimizer)

            net, path = network(), str(tmp_path / f"{rank}.{wrapped}")
            trainer, steps = make(net), []
            for number in range(STEPS):
                if number == 2:
                    trainer.save_states(path)
                    trainer = make(net)
                    trainer.load_states(path)
                backward(net, *rows(number, rank, 2))
                trainer.step(BATCH // 2)
                steps.append(weights(net))
            found.append(steps)
        return found

    for each in zip(*job(2, fn), strict=True):
        assert_alike(list(each), alone("momentum"))


def test_process_sets_train_their_own_models() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        pair, single = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
        mine = single if rank == 1 else pair
        found = []
        for wrapped in (False, True):
            net, (name, options) = network(), OPTIMIZERS["sgd"]
            if wrapped:
                optimizer = hvd.DistributedOptimizer(
                    mx.optimizer.create(name, **options), process_set=mine
                )
                trainer = mx.gluon.Trainer(net.collect_params(), optimizer)
            else:
                trainer = hvd.DistributedTrainer(
                    net.collect_params(), name, dict(options), process_set=mine
                )
            found.append(trained(net, trainer.step, 0 if rank < 2 else 1, 1 if rank == 1 else 2))
        outside = network()
        hvd.DistributedTrainer(outside.collect_params(), "sgd", process_set=single)
        return found

    results = job(3, fn, dynamic_process_sets=True)
    for way in range(2):
        assert_alike([results[0][way], results[2][way]], alone("sgd"))
        assert_alike([results[1][way]], alone("sgd"))


def test_a_distributed_optimizer_is_unwrapped_by_the_trainer() -> None:
    def fn(rank: int) -> Any:
        import farandole.mxnet as hvd

        net, (name, options) = network(), OPTIMIZERS["momentum"]
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name, **options))
        with pytest.warns(UserWarning, match=mentioning("unwrapped")):
            trainer = hvd.DistributedTrainer(net.collect_params(), optimizer)
        assert trainer.learning_rate == 0.05
        trainer.set_learning_rate(0.05)
        return trained(net, trainer.step, rank, 2)

    assert_alike(job(2, fn), alone("momentum"))


def test_a_distributed_optimizer_only_changes_the_update() -> None:
    def fn(rank: int) -> None:
        import pickle

        import farandole.mxnet as hvd

        plain = mx.optimizer.create("adam", learning_rate=0.5, rescale_grad=1.0)
        optimizer = hvd.DistributedOptimizer(plain)
        assert isinstance(optimizer, mx.optimizer.Optimizer)
        assert (optimizer.beta1, optimizer.learning_rate, optimizer.rescale_grad) == (
            plain.beta1,
            0.5,
            0.5,
        )
        optimizer.set_learning_rate(0.25)
        optimizer.rescale_grad = 0.125
        assert (plain.lr, plain.rescale_grad) == (0.25, 0.125)
        again = pickle.loads(pickle.dumps(optimizer))
        assert isinstance(again, hvd.DistributedOptimizer)
        assert (again.learning_rate, again.rescale_grad) == (0.25, 0.125)
        with pytest.raises(ValueError, match=mentioning("distributed")):
            hvd.DistributedOptimizer(optimizer)

    job(2, fn)


def test_one_rank_alone_is_a_plain_trainer() -> None:
    def fn(rank: int) -> Any:
        import farandole.mxnet as hvd

        net, (name, options) = network(), OPTIMIZERS["adam"]
        trainer = hvd.DistributedTrainer(
            net.collect_params(), name, dict(options), gradient_predivide_factor=7.0
        )
        return trained(net, trainer.step, 0, 1)

    (result,) = job(1, fn)
    for step, wanted in zip(result, alone("adam"), strict=True):
        assert all(np.array_equal(one, two) for one, two in zip(step, wanted, strict=True))
