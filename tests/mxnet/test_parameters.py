"""All ranks start with equal parameters, with known and unknown shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.mxnet.parameter_names import canonical
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def network(deferred: bool, rank: int) -> Any:
    for _ in range(rank):
        mx.gluon.nn.Dense(1)  # so that gluon numbers the layers otherwise on each rank
    mx.random.seed(rank)
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Dense(4, in_units=0 if deferred else 3),
        mx.gluon.nn.BatchNorm(in_channels=0 if deferred else 4),
        mx.gluon.nn.Dense(2, in_units=0 if deferred else 4),
    )
    net.initialize(mx.init.Normal())
    return net


def weights(net: Any) -> list[Any]:
    return [each.data().asnumpy() for _, each in sorted(net._collect_params_with_prefix().items())]


def assert_equal(results: list[list[Any]]) -> None:
    for result in results[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(result, results[0], strict=True))


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("root", [0, 2])
def test_networks_of_known_and_unknown_shapes(root: int, hybrid: bool) -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        found = []
        for deferred in (False, True):
            net = network(deferred, rank)
            if hybrid:
                net.hybridize()
            before = None if deferred else weights(net)
            hvd.broadcast_parameters(net.collect_params(), root_rank=root)
            if rank == root and before is not None:
                assert_equal([before, weights(net)])
            out = net(mx.nd.ones((2, 3)))
            found.append([*weights(net), out.asnumpy()])
            assert np.abs(found[-1][-1]).sum() > 0
        return found

    one = job(3, fn)
    assert_equal([result[0] for result in one])
    assert_equal([result[1] for result in one])


def test_training_begins_with_the_roots_parameters() -> None:
    """Horovod's usual order: broadcast, trainer, first batch; the first forward pass creates
    parameters.
    """

    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        net, found = network(True, rank), []
        used = net.collect_params()
        hvd.broadcast_parameters(used, root_rank=1)
        trainer = hvd.DistributedTrainer(used, "adam", {"learning_rate": 0.1})
        for step in range(3):
            x = mx.nd.array(np.random.default_rng([step, rank]).standard_normal((4, 3)))
            with mx.autograd.record():
                loss = (net(x) ** 2).sum()
            loss.backward()
            trainer.step(4)
            found.append([each for each in weights(net) if each.shape != (4,)])
        return found

    results = job(2, fn)
    for step in zip(*results, strict=True):
        assert_equal(list(step))
    assert not np.array_equal(results[0][0][0], results[0][1][0])


def test_ranks_may_initialise_at_different_times() -> None:
    """The root has loaded its parameters; the others know the shapes when they see the first
    batch.
    """

    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        net = network(deferred=rank != 0, rank=rank)
        hvd.broadcast_parameters(net.collect_params())
        net(mx.nd.ones((2, 3)))
        return weights(net)

    assert_equal(job(2, fn))


def test_plain_dictionaries_and_several_calls() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        first = {"w": mx.nd.full((2, 2), float(rank)), "b": mx.nd.full((3,), rank, dtype="int32")}
        second = {"w": mx.nd.full((5,), float(10 * rank))}
        counted = {key: mx.nd.full((1,), 10.0 * key + rank) for key in (9, 10, 11)}
        hvd.broadcast_parameters(first, root_rank=1)
        hvd.broadcast_parameters(second, root_rank=1, prefix="second.")
        hvd.broadcast_parameters(counted, root_rank=1)
        hvd.broadcast_parameters({})
        return [each.asnumpy() for each in (*first.values(), *second.values(), *counted.values())]

    results = job(2, fn)
    assert_equal(results)
    assert [each.flat[0] for each in results[0]] == [1.0, 1, 10.0, 91.0, 101.0, 111.0]


def test_ranks_with_other_names_do_not_wait_for_each_other() -> None:
    def fn(rank: int) -> str:
        import farandole.mxnet as hvd

        with pytest.raises(ValueError) as caught:
            hvd.broadcast_parameters({"ab"[rank]: mx.nd.ones(2), "c": mx.nd.ones(1)})
        return str(caught.value)

    for text in job(2, fn):
        assert text.endswith("in the same order, but number 0 is 'a' on rank 0 and 'b' on rank 1")


def test_a_set_of_ranks_starts_equal() -> None:
    def fn(rank: int) -> float:
        import farandole.mxnet as hvd

        pair = hvd.add_process_set([0, 2])
        mine = {"w": mx.nd.full((2,), float(rank))}
        if pair.included():
            hvd.broadcast_parameters(mine, root_rank=2, process_set=pair)
        return float(mine["w"].asnumpy()[0])

    assert job(3, fn, dynamic_process_sets=True) == [2.0, 1.0, 2.0]


def test_a_reinitialised_parameter_is_broadcast_again() -> None:
    def fn(rank: int) -> list[Any]:
        import farandole.mxnet as hvd

        net = network(True, rank)
        hvd.broadcast_parameters(net.collect_params())
        net(mx.nd.ones((2, 3)))
        net.initialize(mx.init.Uniform(), force_reinit=True)
        return weights(net)

    assert_equal(job(2, fn))


def test_generated_numbers_in_names_are_renumbered() -> None:
    assert canonical(["net3_dense9_w", "net3_dense10_w", "net3_b"]) == [
        "net0_dense0_w",
        "net0_dense1_w",
        "net0_b",
    ]
    assert canonical(["conv2d7_a1", "conv2d7_a01", "plain"]) == [
        "conv2d0_a0",
        "conv2d0_a00",
        "plain",
    ]
    assert canonical([]) == []
