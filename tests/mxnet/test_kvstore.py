"""MXNet's store "horovod", and scaled losses: ranks step as one, or get an error with the cure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.mxnet.networks import BATCH, OPTIMIZERS, alone, assert_alike, network, trained
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_a_plain_trainer_with_the_store_of_that_name() -> None:
    def fn(rank: int) -> Any:
        import farandole.mxnet  # noqa: F401

        net, (name, options) = network(), OPTIMIZERS["momentum"]
        store = mx.kv.create("horovod")
        assert (store.type, store.rank, store.num_workers) == ("horovod", rank, 2)
        with pytest.raises(ValueError, match=mentioning("set_optimizer", "optimizer")):
            store.set_optimizer(None)
        trainer = mx.gluon.Trainer(net.collect_params(), name, dict(options), kvstore=store)
        found = trained(net, lambda rows: trainer.step(rows * store.num_workers), rank, 2)
        # MXNet asks for rank 0's weights in the first step, when the gradients are there
        other = network(rank)
        trainer = mx.gluon.Trainer(
            other.collect_params(), name, dict(options), kvstore=mx.kv.create("horovod")
        )
        return found, trained(other, trainer.step, rank, 2)

    one, two = job(2, fn)
    assert_alike([one[0], two[0]], alone("momentum"))
    assert_alike([one[1], two[1]], one[1])


def test_the_store_adds_up_devices_and_ranks() -> None:
    def fn(rank: int) -> Any:
        import farandole.mxnet  # noqa: F401

        store, devices = mx.kv.create("horovod"), [mx.cpu(0), mx.cpu(1)]
        arrays = [
            mx.nd.full((2,), 10.0 * rank + number, ctx=device)
            for number, device in enumerate(devices)
        ]
        out = [mx.nd.zeros((2,), ctx=device) for device in devices]
        store.pushpull("a", arrays, out=out)
        kept = [each.asnumpy().tolist() for each in arrays]
        store.pushpull("a", arrays)
        store.broadcast("b", mx.nd.full((1,), rank + 7.0), out=mx.nd.zeros((1,)))
        return kept, [each.asnumpy().tolist() for each in (*out, *arrays)]

    for rank, (kept, found) in enumerate(job(2, fn)):
        assert kept == [[10.0 * rank] * 2, [10.0 * rank + 1] * 2]
        assert found == [[22.0, 22.0]] * 4


def test_scaled_losses_with_a_distributed_optimizer() -> None:
    """Each rank would decide alone whether it skips a step, and the others would wait for its
    gradients.
    """

    def fn(rank: int) -> None:
        from mxnet.contrib.amp.loss_scaler import LossScaler

        import farandole.mxnet as hvd

        net, (name, options) = network(), OPTIMIZERS["sgd"]
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create(name, **options))
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer)
        # as amp.init_trainer(trainer) does, where amp.init() has patched MXNet
        trainer._amp_loss_scaler = LossScaler()
        with pytest.raises(ValueError, match=r"hvd.DistributedTrainer\(params, optimizer\)"):
            trained(net, trainer.step, rank, 2)

    job(2, fn)


def test_scaled_losses_with_a_trainer_skip_steps_together() -> None:
    def fn(rank: int) -> Any:
        from mxnet.contrib.amp.loss_scaler import LossScaler

        import farandole.mxnet as hvd

        net, (name, options) = network(), OPTIMIZERS["sgd"]
        trainer = hvd.DistributedTrainer(net.collect_params(), name, dict(options))
        trainer._amp_loss_scaler = LossScaler()
        first = net.collect_params()[next(iter(net.collect_params()))]

        def step(rows: int) -> None:
            if rank == 1 and step.number == 1:  # type: ignore[attr-defined]
                first.grad()[:] = float("inf")
            step.number += 1  # type: ignore[attr-defined]
            trainer.step(rows)

        step.number = 0  # type: ignore[attr-defined]
        return trained(net, step, rank, 2), trainer._amp_loss_scaler._next_loss_scale

    (one, scale), (two, other) = job(2, fn)
    assert scale == other == 2.0**15
    assert all((a == b).all() for a, b in zip(one[0], one[1], strict=True)), (
        f"a step of {BATCH} rows was skipped"
    )
    assert_alike([one, two], one)
