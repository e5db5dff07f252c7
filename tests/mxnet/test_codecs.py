"""MXNet's gradients through codecs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.mxnet.networks import backward, network, rows
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_a_trainer_gets_the_votes_of_all_ranks() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        net = network()
        parameters = list(net.collect_params().values())
        own = []
        for other in range(3):
            backward(net, *rows(0, other, 3))
            own.append([parameter.grad().asnumpy() for parameter in parameters])
        for number, options in enumerate(({"codec": "sign"}, {})):
            trainer = hvd.DistributedTrainer(
                net.collect_params(), "sgd", prefix=f"{number}", **options
            )
            for _ in range(2):
                backward(net, *rows(0, rank, 3))
                trainer.allreduce_grads()
                for parameter, *of_ranks in zip(parameters, *own, strict=True):
                    votes = np.sign(sum(map(np.sign, of_ranks)))
                    assert np.array_equal(parameter.grad().asnumpy(), 3 * votes)

    job(3, fn, codec="sign")


def test_a_trainer_votes_by_the_momentum_of_each_rank() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        net = network()
        parameters = list(net.collect_params().values())
        backward(net, *rows(0, rank, 3))
        trainer = hvd.DistributedTrainer(
            net.collect_params(), "sgd", prefix="momentum", codec="sign:0.5"
        )
        found = []
        for factor in (4.0, -1.0, -9.0):
            for parameter in parameters:
                parameter.grad()[:] = factor
            trainer.allreduce_grads()
            found.append(
                {
                    each
                    for parameter in parameters
                    for each in parameter.grad().asnumpy().reshape(-1).tolist()
                }
            )
        assert found == [{3.0}, {3.0}, {-3.0}]  # momentum: 2, 0.5, -4.25

    job(3, fn)


def test_residuals_stay_with_their_parameter() -> None:
    """Gluon numbers names, and ranks may start at different numbers: the position among all
    parameters counts.
    """

    def fn(rank: int) -> None:
        import farandole.mxnet as hvd
        from farandole.strategies.codecs import codec

        random, chosen = np.random.default_rng(rank), codec("topk:0.25")
        parameters = mx.gluon.ParameterDict(f"net{rank}_")
        layers = [
            parameters.get(f"dense{number}_weight", shape=(12,), init="zeros")
            for number in range(2)
        ]
        parameters.initialize()
        trainer = hvd.DistributedTrainer(
            parameters, "sgd", {"learning_rate": 1.0}, strategy="local_sgd:1", codec=chosen
        )
        given = np.zeros((2, 12), np.float32)
        for step in range(4):
            layers[0].grad_req = "write" if step < 2 else "null"
            gradients = random.standard_normal((2, 12)).astype(np.float32)
            gradients[0] *= step < 2
            given += gradients
            with mx.autograd.record():
                loss = (layers[1].data() * mx.nd.array(gradients[1])).sum()
                if step < 2:
                    loss = loss + (layers[0].data() * mx.nd.array(gradients[0])).sum()
            loss.backward()
            trainer.step(1)
        left = [
            chosen.state_dict()[f"residual/change/net0_dense{number}_weight"] for number in range(2)
        ]
        both = hvd.allgather(mx.nd.array(np.stack([given, left])[None])).asnumpy().mean(0)
        came = -np.stack([layer.data().asnumpy() for layer in layers])
        np.testing.assert_allclose(came, both[0] + both[1], rtol=1e-4, atol=1e-5)

    job(2, fn)


@pytest.mark.parametrize("codec", ["topk:0.4", "onebit", "sign:0.5"])
def test_residuals_of_unused_parameters_are_not_sent(codec: str) -> None:
    """No rank updates such a parameter: a sent residual would be lost, and momentum would decay."""

    def fn(rank: int) -> list[list[float]]:
        import farandole.mxnet as hvd

        ends = []
        for number, factors in enumerate(([1.0, 1.0, -0.2], [1.0, 0.0, 1.0, 0.0, 0.0, -0.2])):
            weight = mx.gluon.Parameter(f"weight{number}", shape=(3,), init="zeros")
            weight.initialize()
            trainer = hvd.DistributedTrainer(
                [weight], "sgd", {"learning_rate": 1.0, "wd": 0.0}, codec=codec
            )
            for factor in factors:
                if factor:
                    with mx.autograd.record():
                        loss = (weight.data() * mx.nd.array([2.0, -3.0, 1.0])).sum() * factor
                    loss.backward()
                trainer.step(1, ignore_stale_grad=True)
            ends.append(weight.data().asnumpy().tolist())
        return ends

    for straight, paused in job(2, fn):
        assert paused == straight


@pytest.mark.parametrize("name", ["sgd", "nag"])
def test_a_codec_replaces_the_momentum_of_sgd(name: str) -> None:
    """With equal gradients of 1 and -1, which onebit sends exactly, steps grow to half of the
    momentum's sum: see ``codecs.momentum``.
    """

    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        net = network()
        parameters = list(net.collect_params().values())
        backward(net, *rows(0, rank, 2))
        before = [parameter.data().asnumpy() for parameter in parameters]
        trainer = hvd.DistributedTrainer(
            net.collect_params(), name, {"learning_rate": 0.1, "momentum": 0.9}, codec="onebit"
        )
        for _ in range(10):
            backward(net, *rows(0, rank, 2))
            for parameter in parameters:
                parameter.grad()[:] = 1.0
            trainer.step(1)
        moved = sum(min((1 - 0.9 ** (step + 1)) / 0.1, 5) for step in range(10))
        for parameter, old in zip(parameters, before, strict=True):
            assert np.allclose(parameter.data().asnumpy(), old - 0.1 * moved, atol=1e-5)

    job(2, fn)
