"""One rank with batch B, and n ranks with B/n: equal weights, up to rounding, after each of several
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentions
from tests.mxnet.networks import (
    BATCH,
    OPTIMIZERS,
    STEPS,
    alone,
    assert_alike,
    backward,
    fill,
    half_steps,
    network,
    rows,
    trained,
    weights,
)
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"num_groups": 3},
    "many groups": {"num_groups": 100},
    "predivide": {"gradient_predivide_factor": 4.0},
    "prefix": {"prefix": "second."},
}


@pytest.mark.parametrize(("n", "wire"), [(2, "shm"), (2, "tcp"), (4, "shm")])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_trainer(kind: str, n: int, wire: str) -> None:
    def fn(rank: int) -> dict[str, Any]:
        import farandole.mxnet as hvd

        found = {}
        for name, extra in VARIANTS.items():
            net, (optimizer, options) = network(), OPTIMIZERS[kind]
            trainer = hvd.DistributedTrainer(
                net.collect_params(), optimizer, dict(options), **extra
            )
            found[name] = trained(net, trainer.step, rank, n)
        return found

    results = job(n, fn, wire=wire)
    for name in VARIANTS:
        assert_alike([result[name] for result in results], alone(kind))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer(kind: str, n: int) -> None:
    """By an updater as in Module, one parameter at a time and several; and in a plain gluon
    trainer.
    """

    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        name, options = OPTIMIZERS[kind]
        found = []
        for single in (True, False):
            net = network()
            plain = mx.optimizer.create(name, **options, rescale_grad=n / BATCH)
            updater = mx.optimizer.get_updater(
                hvd.DistributedOptimizer(plain, gradient_predivide_factor=2.0)
            )
            used = [parameter for _, parameter in sorted(net._collect_params_with_prefix().items())]

            def step(
                batch: int, used: Any = used, updater: Any = updater, single: bool = single
            ) -> None:
                columns = list(range(len(used))), [p.grad() for p in used], [p.data() for p in used]
                for each in zip(*columns, strict=True) if single else [columns]:
                    updater(*each)

            found.append(trained(net, step, rank, n))
        for extra in ({}, {"num_groups": 2}):
            net = network()
            distributed = hvd.DistributedOptimizer(mx.optimizer.create(name, **options), **extra)
            found.append(
                trained(net, mx.gluon.Trainer(net.collect_params(), distributed).step, rank, n)
            )
        return found

    results = job(n, fn)
    for each in zip(*results, strict=True):
        assert_alike(list(each), alone(kind))


def test_compression() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        class Halves(hvd.Compression.Compressor):
            @staticmethod
            def compress(tensor: Any) -> tuple[Any, Any]:
                return tensor * 0.5, None

            @staticmethod
            def decompress(tensor: Any, ctx: Any) -> Any:
                return tensor * 2

        found = []
        for compression in (hvd.Compression.fp16, Halves):
            net, (name, options) = network(), OPTIMIZERS["momentum"]
            trainer = hvd.DistributedTrainer(net.collect_params(), name, dict(options), compression)
            found.append(trained(net, trainer.step, rank, 2))
        return found

    results = job(2, fn)
    assert_alike([result[0] for result in results], alone("momentum"), 5e-3)
    assert_alike([result[1] for result in results], alone("momentum"))


def embedding(sparse: bool) -> Any:
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Embedding(11, 3, sparse_grad=sparse), mx.gluon.nn.Dense(2, in_units=9))
    net.initialize()
    fill(net, 1)
    return net


def words(step: int, rank: int, n: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(2000 + step)
    x, y = generator.integers(0, 8, (BATCH, 3)), generator.standard_normal((BATCH, 2))
    return tuple(mx.nd.array(np.split(each, n)[rank]) for each in (x, y))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_embeddings(kind: str, sparse: bool) -> None:
    name, options = OPTIMIZERS[kind]

    def steps(rank: int, n: int, make: Callable[[Any], Any]) -> list[Any]:
        net = embedding(sparse)
        trainer, found = make(net.collect_params()), []
        for number in range(STEPS):
            backward(net, *words(number, rank, n))
            trainer.step(BATCH // n)
            found.append(weights(net))
        return found

    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        return [
            steps(rank, 2, lambda used: hvd.DistributedTrainer(used, name, dict(options))),
            steps(
                rank,
                2,
                lambda used: mx.gluon.Trainer(
                    used, hvd.DistributedOptimizer(mx.optimizer.create(name, **options), 2.0)
                ),
            ),
        ]

    wanted = steps(0, 1, lambda used: mx.gluon.Trainer(used, name, dict(options)))
    for each in zip(*job(2, fn), strict=True):
        assert_alike(list(each), wanted)


def test_half_precision() -> None:
    options = {"learning_rate": 0.01, "momentum": 0.9, "multi_precision": True}

    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        return [
            half_steps(rank, 2, lambda used: hvd.DistributedTrainer(used, "sgd", options)),
            half_steps(
                rank,
                2,
                lambda used: mx.gluon.Trainer(
                    used, hvd.DistributedOptimizer(mx.optimizer.create("sgd", **options))
                ),
            ),
        ]

    wanted = half_steps(0, 1, lambda used: mx.gluon.Trainer(used, "sgd", options))
    for each in zip(*job(2, fn), strict=True):
        assert_alike(list(each), wanted, 5e-3)


def test_a_network_on_two_devices_of_each_rank() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        net, found = network(), []
        devices = [mx.cpu(0), mx.cpu(1)]
        net.collect_params().reset_ctx(devices)
        hvd.broadcast_parameters(net.collect_params())
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        for number in range(STEPS):
            parts = [mx.gluon.utils.split_and_load(each, devices) for each in rows(number, rank, 2)]
            with mx.autograd.record():
                losses = [mx.gluon.loss.L2Loss()(net(x), y) for x, y in zip(*parts, strict=True)]
            mx.autograd.backward(losses)
            trainer.step(BATCH // 2)
            copies = [
                each.list_data() for _, each in sorted(net._collect_params_with_prefix().items())
            ]
            assert all(np.array_equal(one.asnumpy(), two.asnumpy()) for one, two in copies)
            found.append([each[0].asnumpy() for each in copies])
        return found

    net = network()
    plain = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    assert_alike(job(2, fn), trained(net, plain.step, 0, 1))


def test_parameters_used_by_some_ranks_are_updated_on_all() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        first, second = network(1), network(2)
        both = mx.gluon.ParameterDict()
        both.update(first.collect_params())
        both.update(second.collect_params())
        trainer = hvd.DistributedTrainer(both, "sgd", {"learning_rate": 0.1})
        for step in range(3):
            x, y = rows(step, rank, 2)
            backward(first if rank == 0 else second, x, y)
            trainer.step(len(x))
        backward(first, x, y)
        try:
            trainer.step(len(x))
            said = ""
        except UserWarning as warning:
            said = str(warning)
        return [weights(first), weights(second), said]

    one, two = job(2, fn)
    assert all(np.array_equal(a, b) for a, b in zip(one[0] + one[1], two[0] + two[1], strict=True))
    for said in (one[2], two[2]):
        assert mentions(said, "`step`", "backward")


@pytest.mark.parametrize("factor", [0.001, 3.0, 1e6])
def test_a_gradient_of_one_rank_with_a_predivide_factor(
    factor: float,
) -> None:
    def fn(rank: int) -> list[float]:
        import mxnet as mx

        import farandole.mxnet as hvd

        net = mx.gluon.nn.Dense(1, use_bias=False, in_units=1)
        net.initialize(mx.init.Zero())
        options = {"learning_rate": 1.0, "wd": 0.0}
        trainer = hvd.DistributedTrainer(
            net.collect_params(), "sgd", options, gradient_predivide_factor=factor
        )
        if rank == 1:
            with mx.autograd.record():
                loss = net(mx.nd.array([[4.0]]))
            loss.backward()
        trainer.step(1, ignore_stale_grad=True)
        return [float(net.weight.data().asnumpy()[0, 0])]

    for (end,) in job(2, fn):
        assert end == pytest.approx(-2.0)


def test_gradients_can_be_clipped_between_allreduce_and_update() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        net = network()
        used = net.collect_params()
        trainer = hvd.DistributedTrainer(used, "sgd", {"learning_rate": 0.1})
        found = []
        for number in range(STEPS):
            backward(net, *rows(number, rank, 2))
            trainer.allreduce_grads()
            norm = mx.gluon.utils.clip_global_norm([each.grad() for each in used.values()], 5.0)
            trainer.update(BATCH // 2)
            found.append([*weights(net), np.array(norm)])
        return found

    net = network()
    trainer, wanted = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}), []
    for number in range(STEPS):
        backward(net, *rows(number, 0, 1))
        trainer.allreduce_grads()
        norm = mx.gluon.utils.clip_global_norm(
            [each.grad() for each in net.collect_params().values()], 5.0
        )
        trainer.update(BATCH)
        wanted.append([*weights(net), np.array(norm)])
    assert wanted[0][-1] > 5.0
    assert_alike(job(2, fn), wanted)
