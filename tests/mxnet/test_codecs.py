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
