"""Seeds, and files that are complete or absent."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

mx = pytest.importorskip("mxnet", reason="mxnet is not installed")


def test_seeds_and_files(tmp_path: Path) -> None:
    def check(rank: int) -> Any:
        import farandole.mxnet as hvd

        drawn = []
        for _ in range(2):
            mine = hvd.seed_everything(2**32 - 1)
            net = mx.gluon.nn.Dense(2, in_units=2)
            net.initialize(mx.init.Normal())
            common = random.random(), np.random.random(), net.weight.data().asnumpy().tolist()
            drawn.append((common, mine.normal(size=3).tolist()))
        trainer = hvd.DistributedTrainer(net.collect_params(), "adam")
        hvd.save(net, tmp_path / "net")
        hvd.save(trainer, tmp_path / "states")
        hvd.save({"rank": mx.nd.full((2,), rank + 1)}, tmp_path / "arrays")
        net.load_parameters(str(tmp_path / "net"))
        trainer.load_states(str(tmp_path / "states"))
        found = mx.nd.load(str(tmp_path / "arrays"))["rank"].asnumpy().tolist()
        with pytest.raises((OSError, RuntimeError), match=mentioning("No such file", "nowhere")):
            hvd.save(net, tmp_path / "nowhere" / "net")
        return drawn, found

    ((first, again), found), ((other, _), other_found) = job(2, check)
    assert first == again
    assert first[0] == other[0]
    assert first[1] != other[1]
    assert found == other_found == [1.0, 1.0]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["arrays", "net", "states"]
