"""Training with strategies that continues from the folder of an earlier job, with MXNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mxnet.networks import BATCH, backward, network, rows, weights
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")

STEPS, CUT = 9, 6  # the cut is between two exchanges
SPECS = ("diloco:4,momentum=0.5", "easgd:4", "ps:1,optimizer=adam,lr=0.01")


def trained(spec: str, steps: int, folder: Path | None = None) -> list[Any]:
    """Return each rank's weights after all steps up to ``steps``."""

    def body(rank: int) -> Any:
        import farandole.mxnet as hvd

        net = network()
        options = {"learning_rate": 0.01}
        trainer = hvd.DistributedTrainer(net.collect_params(), "adam", options, strategy=spec)

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.step < steps:
                backward(net, *rows(state.step, rank, 2))
                trainer.step(BATCH // 2)
                state.step += 1
                state.commit()

        train(hvd.elastic.MXNetState(net, trainer, step=0))
        return [each.tolist() for each in weights(net)]

    path = "" if folder is None else str(folder)
    return job(2, body, store=True, commit_dir=path, commit_dir_seconds=1000.0)


@pytest.mark.parametrize("spec", SPECS)
def test_a_job_that_is_started_again_continues_exactly(spec: str, tmp_path: Path) -> None:
    expected = trained(spec, STEPS)
    trained(spec, CUT, tmp_path)
    assert trained(spec, STEPS, tmp_path) == expected
