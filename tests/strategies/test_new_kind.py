"""A strategy of a new kind and a new codec: each is one file and an entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.errors import SettingsError
from farandole.job.plugins import registry
from farandole.strategies import Codec, PushCodec, Strategy
from farandole.strategies.options import GradientOptions, gradient_options
from farandole.strategies.references import strategies_with_codecs
from farandole.strategies.specs import strategy_of
from farandole.strategies.weights import WeightExchange
from tests.kits.codec import CodecKit
from tests.kits.messages import mentioning
from tests.kits.push_codec import PushCodecKit
from tests.kits.strategy import StrategyKit
from tests.run_job import job
from tests.strategies.toys.largest import Largest
from tests.strategies.toys.shift import Shift

ENTRY_POINTS = """[farandole.strategies]
shift = tests.strategies.toys.shift:Shift

[farandole.codecs]
largest = tests.strategies.toys.largest:Largest
"""


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what ``pip`` leaves of a distribution."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "toys-1.0.dist-info").mkdir()
    (folder / "toys-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


class TestShift(StrategyKit):
    joins = False

    def strategy(self) -> Strategy:
        return Shift(2)


class TestLargest(CodecKit):
    def codec(self) -> Codec:
        return Largest()


class TestLargestPushes(PushCodecKit):
    def codec(self) -> PushCodec:
        return Largest()


def test_both_are_known_by_name(distribution: Path) -> None:
    with pytest.raises(ValueError, match=mentioning("'shift'", "strategy")):
        strategy_of("shift")
    with installed(distribution):
        assert "shift" in registry.names("strategy")
        assert "largest" in registry.names("codec")
        options = gradient_options(strategy="shift:3", codec="largest")
        assert options.strategy is not None
        assert (options.strategy.spec, options.codec) == ("shift:3", "largest")
        with pytest.raises(SettingsError, match=mentioning("left neighbour")):
            gradient_options(strategy="shift", codec="sign")
        assert strategies_with_codecs()[-1] == "shift"


@pytest.mark.parametrize("codec", ["", "bf16", "largest"])
def test_ranks_average_arrays_of_numpy(distribution: Path, codec: str) -> None:
    def fn(rank: int) -> tuple[list[float], int]:
        with installed(distribution):
            strategy = strategy_of("shift")
            assert not isinstance(strategy, str)
            exchange = WeightExchange("toy", GradientOptions(codec=codec), strategy)
        weights = [np.array([4.0, 8.0]) * rank]
        exchange(weights, exchange.slots(weights), 1)
        return weights[0].tolist(), 0 if exchange.codec is None else exchange.codec.sent

    sums = np.sum([weights for weights, _ in job(2, fn)], axis=0)
    kept = [2.0, 8.0] if codec == "largest" else [4.0, 8.0]  # 4 is not among the largest fifth
    assert sums.tolist() == kept
    assert all((sent > 0) == bool(codec) for _, sent in job(2, fn))


@pytest.mark.parametrize("codec", ["", "largest"])
def test_ranks_train_a_model_of_torch(distribution: Path, codec: str) -> None:
    torch = pytest.importorskip("torch")

    def fn(rank: int) -> Any:
        import farandole.torch as hvd

        parameter = torch.nn.Parameter(torch.full((4,), float(rank)))
        with installed(distribution):
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([parameter], lr=0.1),
                [("parameter", parameter)],
                strategy="shift",
                codec=codec,
            )
        for _ in range(20):
            optimizer.zero_grad()
            (parameter.sum() * 0).backward()
            optimizer.step()
        return parameter.detach().numpy()

    first, second = job(2, fn)
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_codec_is_refused_without_an_engine() -> None:
    """The command refuses a pair that does not go together before it starts a job."""
    program = """
import subprocess
import sys
from farandole.job.plugins import registry
from farandole.strategies.codecs import codec
from farandole.strategies.specs import strategy_of

strategies = [strategy_of(name) for name in registry.names("strategy")]
refusing = [each.name for each in strategies if each.reference.objection(each, codec("sign"))]
print(*refusing, "farandole.core.engine" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    refusing = "local_sgd bmuf diloco easgd gossip gossip_async ps ps_async ssp"
    assert found.stdout == f"{refusing} False\n", found.stderr
