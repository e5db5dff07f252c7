"""MXNet's gradients through codecs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.job import job
from tests.mxnet.test_training import backward, network, rows

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_a_trainer_gets_the_votes_of_all_ranks_by_argument_and_by_setting() -> None:
    def fn(rank: int) -> None:
        import farandole.mxnet as hvd

        net = network()
        parameters = list(net.collect_params().values())
        own = []
        for other in range(3):
            backward(net, *rows(0, other, 3))
            own.append([parameter.grad().asnumpy() for parameter in parameters])
        for number, options in enumerate(({"codec": "sign"}, {})):
            trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", prefix=f"{number}", **options)
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
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", prefix="momentum", codec="sign:0.5")
        found = []
        for factor in (4.0, -1.0, -9.0):
            for parameter in parameters:
                parameter.grad()[:] = factor
            trainer.allreduce_grads()
            found.append({each for parameter in parameters for each in parameter.grad().asnumpy().reshape(-1).tolist()})
        assert found == [{3.0}, {3.0}, {-3.0}]  # momentum: 2, 0.5, -4.25

    job(3, fn)
