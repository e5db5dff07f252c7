"""Trainers whose ranks exchange weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.mxnet.networks import (
    BATCH,
    OPTIMIZERS,
    STEPS,
    backward,
    half_steps,
    network,
    rows,
    trained,
    weights,
)
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_ranks_that_exchange_weights() -> None:
    """Local SGD with an outer optimizer equals its model; an optimizer without access to weights is
    an error.
    """

    def fn(rank: int) -> Any:
        import farandole.mxnet as hvd
        from farandole.strategies import DiLoCo

        net = network()
        kind, options = OPTIMIZERS["momentum"]
        trainer = hvd.DistributedTrainer(net.collect_params(), kind, options, strategy=DiLoCo(2))
        found = trained(net, trainer.step, rank, 2)
        other_net = network()
        trainer = hvd.DistributedTrainer(
            other_net.collect_params(), kind, options, strategy="diloco:1"
        )
        frozen = next(iter(other_net.collect_params().values()))
        for grad_req in ("write", "null", "write"):  # also for a while
            frozen.grad_req = grad_req
            before = weights(other_net)
            backward(other_net, *rows(0, rank, 2))
            trainer.step(BATCH // 2)
            alike = [
                np.array_equal(old, new)
                for old, new in zip(before, weights(other_net), strict=True)
            ]
            assert sum(alike) == (grad_req == "null")
        trainer = hvd.DistributedTrainer(
            other_net.collect_params(), kind, options, strategy="local_sgd:epoch"
        )
        trained(other_net, trainer.step, rank, 2)
        for tell in (trainer.end_of_epoch, trainer.average_weights):
            tell()
            for weight in weights(other_net):
                both = hvd.allgather(mx.nd.array(weight[None]))
                assert np.array_equal(both[0].asnumpy(), both[1].asnumpy())
            other_net.collect_params()[next(iter(other_net.collect_params()))].data()[:] += rank
        with pytest.raises(ValueError, match=mentioning("gradients")):
            hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
        exact = {"multi_precision": True}
        with pytest.raises(
            ValueError,
            match=mentioning("float32", "0", "steps"),
        ):
            half_steps(
                rank,
                2,
                lambda used: hvd.DistributedTrainer(used, "sgd", exact, strategy="local_sgd:2"),
            )
        return found

    one, two = job(2, fn, strategy="gossip")
    nets = [network(), network()]
    kind, options = OPTIMIZERS["momentum"]
    trainers = [mx.gluon.Trainer(net.collect_params(), kind, options) for net in nets]
    anchor = weights(nets[0])
    velocity = [np.zeros_like(weight) for weight in anchor]
    for number in range(STEPS):
        for rank, (net, trainer) in enumerate(zip(nets, trainers, strict=True)):
            backward(net, *rows(number, rank, 2))
            trainer.step(BATCH // 2)
        if number % 2:
            ways = [
                old - (a + b) / 2 for old, a, b in zip(anchor, *map(weights, nets), strict=True)
            ]
            velocity = [0.9 * kept + way for kept, way in zip(velocity, ways, strict=True)]
            anchor = [
                old - 0.7 * (way + 0.9 * v)
                for old, way, v in zip(anchor, ways, velocity, strict=True)
            ]
            for net in nets:
                for (_, parameter), value in zip(
                    sorted(net._collect_params_with_prefix().items()), anchor, strict=True
                ):
                    parameter.set_data(mx.nd.array(value))
    for found, net in ((one, nets[0]), (two, nets[1])):
        for a, b in zip(found[-1], weights(net), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_parameter_servers_under_names_of_mxnet() -> None:
    def fn(rank: int) -> Any:
        import farandole.mxnet as hvd

        found = []
        for strategy in (
            "dist_sync",
            "dist_sync_device",
            "allreduce",
            "gossip:complete,gamma=1",
            "dist_async",
        ):
            net = network()
            kind, options = OPTIMIZERS["sgd"]
            codec = "topk:1" if "gossip" in strategy else ""  # it leaves out nothing
            trainer = hvd.DistributedTrainer(
                net.collect_params(),
                kind,
                dict(options),
                strategy=strategy,
                codec=codec,
                prefix=strategy,
            )
            found.append(trained(net, trainer.step, rank, 2)[-1])
        assert trainer._options.strategy.spec == "ps_async:1"
        net = network()
        trainer = hvd.DistributedTrainer(
            net.collect_params(), kind, dict(options), strategy="gossip_async", prefix="g"
        )
        trained(net, trainer.step, rank, 2)
        trainer.average_weights()
        alike = hvd.allgather_object(weights(net))
        assert all(np.array_equal(a, b) for a, b in zip(*alike, strict=True))
        return found

    for servers, same, reduced, gossiped, _ in job(2, fn, store=True):
        for a, b, c in zip(servers, reduced, gossiped, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(c, b, rtol=1e-4, atol=1e-6)
        assert all(np.array_equal(a, b) for a, b in zip(servers, same, strict=True))
