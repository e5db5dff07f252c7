"""Every mode runs the kit of strategies."""

from __future__ import annotations

from farandole.base.contracts import Strategy
from farandole.job.plugins import registry
from farandole.strategies.specs import strategy_of
from tests.kits.strategy import StrategyKit

SPECS = (
    "local_sgd:3",
    "bmuf:2",
    "diloco:2",
    "easgd:2",
    "gossip:ring",
    "gossip_async:complete",
    "ps:2",
    "ps_async",
    "ssp:3",
)
# the centre is there, and a new one begins with the weights of rank 0
ON_SERVERS = ("ps", "ps_async", "ssp")


def kit(spec: str, codec: str = "") -> type[StrategyKit]:
    def strategy(self: StrategyKit) -> Strategy:
        found = strategy_of(spec)
        assert not isinstance(found, str)
        return found

    name = spec.partition(":")[0]
    own = {
        "strategy": strategy,
        "repeats": name != "gossip_async",
        "resumes": name not in ON_SERVERS,
        "waits": name not in ("gossip_async", "ps_async", "ssp"),
        "joins": name != "gossip",
        "codec": codec,
    }
    return type(f"Test_{name}_{codec}", (StrategyKit,), own)


(
    TestLocalSGD,
    TestBMUF,
    TestDiLoCo,
    TestEASGD,
    TestGossip,
    TestAsyncGossip,
    TestPS,
    TestPSAsync,
    TestSSP,
) = map(kit, SPECS)
TestWarmup, TestEpoch = kit("local_sgd:4,warmup=2"), kit("local_sgd:epoch")
TestNesterov, TestAdam = (
    kit("local_sgd:2,outer=nesterov,lr=0.5"),
    kit("ps_async:2,optimizer=adam,lr=0.05"),
)

TestQuorum, TestOuterQuorum = (
    kit("local_sgd:3,quorum=2,grace=60"),
    kit("diloco:2,quorum=0.9,grace=60"),
)
TestCodedGossip = kit("gossip:exponential", "int8")


def test_the_kit_runs_every_mode() -> None:
    assert [spec.partition(":")[0] for spec in SPECS] == registry.names("strategy")
