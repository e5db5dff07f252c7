"""One rank with batch B, and n ranks with B/n: the same weights, to rounding, after each of several
steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning, mentions
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")

BATCH, STEPS = 12, 4
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {"learning_rate": 0.1, "wd": 0.01}),
    "momentum": ("sgd", {"learning_rate": 0.05, "momentum": 0.9}),
    "adam": ("adam", {"learning_rate": 0.01, "epsilon": 1e-3}),
}


def network(seed: int = 0) -> Any:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(9, activation="tanh", in_units=6), mx.gluon.nn.Dense(2, in_units=9))
    net.initialize()
    fill(net, seed)
    return net


def fill(net: Any, seed: int) -> None:
    """The same numbers in every process."""
    generator = np.random.default_rng(seed)
    for _, parameter in sorted(net._collect_params_with_prefix().items()):
        parameter.set_data(mx.nd.array(generator.standard_normal(parameter.shape)))


def rows(step: int, rank: int, n: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(1000 + step)
    x, y = generator.standard_normal((BATCH, 6)), generator.standard_normal((BATCH, 2))
    return tuple(mx.nd.array(np.split(each, n)[rank]) for each in (x, y))


def backward(net: Any, x: Any, y: Any) -> None:
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(net(x), y)
    loss.backward()


def weights(net: Any) -> list[Any]:
    return [
        parameter.data().asnumpy()
        for _, parameter in sorted(net._collect_params_with_prefix().items())
    ]


def trained(net: Any, step: Callable[[int], None], rank: int, n: int) -> list[list[Any]]:
    """The weights after each step."""
    found = []
    for number in range(STEPS):
        backward(net, *rows(number, rank, n))
        step(BATCH // n)
        found.append(weights(net))
    return found


def alone(kind: str) -> list[list[Any]]:
    net, (name, options) = network(), OPTIMIZERS[kind]
    return trained(net, mx.gluon.Trainer(net.collect_params(), name, dict(options)).step, 0, 1)


def assert_alike(
    results: list[list[list[Any]]], wanted: list[list[Any]], tolerance: float = 1e-5
) -> None:
    for steps in zip(*results, strict=True):
        for result in steps:
            assert all(
                np.array_equal(one, same) for one, same in zip(result, steps[0], strict=True)
            ), "the same bits"
    for step, expected in zip(results[0], wanted, strict=True):
        for one, other in zip(step, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


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


def half_steps(rank: int, n: int, make: Callable[[Any], Any]) -> list[list[Any]]:
    """A parameter of type float16, whose updates keep a copy of it in float32. (Dense has no
    float16 on CPUs.)
    """
    used = mx.gluon.ParameterDict()
    weight = used.get("weight", shape=(6,), dtype="float16", init="ones")
    used.initialize()
    trainer, found = make(used), []
    for number in range(STEPS):
        x, y = (each.astype("float16") for each in rows(number, rank, n))
        with mx.autograd.record():
            loss = ((x * weight.data()).sum(axis=1) - y[:, 0]) ** 2
        loss.backward()
        trainer.step(BATCH // n)
        found.append([weight.data().asnumpy().astype("float32")])
    return found


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


def test_what_only_some_ranks_computed_is_updated_on_all() -> None:
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


def test_gradients_that_no_backward_has_computed_are_told() -> None:
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


def test_parameters_with_sparse_values_are_told_with_the_cure() -> None:
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


def test_what_is_no_optimizer_is_told_with_the_cure() -> None:
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


def test_process_sets_train_models_of_their_own() -> None:
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


def test_ranks_that_exchange_weights() -> None:
    """Local SGD with an outer optimizer is its model; what sees no weights says so."""

    def fn(rank: int) -> Any:
        import farandole.mxnet as hvd
        from farandole.strategies import DiLoCo

        net = network()
        kind, options = OPTIMIZERS["momentum"]
        trainer = hvd.DistributedTrainer(net.collect_params(), kind, options, strategy=DiLoCo(2))
        found = trained(net, trainer.step, rank, 2)
        told = network()
        trainer = hvd.DistributedTrainer(told.collect_params(), kind, options, strategy="diloco:1")
        frozen = next(iter(told.collect_params().values()))
        for grad_req in ("write", "null", "write"):  # also for a while
            frozen.grad_req = grad_req
            before = weights(told)
            backward(told, *rows(0, rank, 2))
            trainer.step(BATCH // 2)
            alike = [
                np.array_equal(old, new) for old, new in zip(before, weights(told), strict=True)
            ]
            assert sum(alike) == (grad_req == "null")
        trainer = hvd.DistributedTrainer(
            told.collect_params(), kind, options, strategy="local_sgd:epoch"
        )
        trained(told, trainer.step, rank, 2)
        for tell in (trainer.end_of_epoch, trainer.average_weights):
            tell()
            for weight in weights(told):
                both = hvd.allgather(mx.nd.array(weight[None]))
                assert np.array_equal(both[0].asnumpy(), both[1].asnumpy())
            told.collect_params()[next(iter(told.collect_params()))].data()[:] += rank
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
