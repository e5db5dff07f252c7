"""The properties of the inner optimizer for codecs and strategies, and refused combinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from farandole.base.contracts import Momentum
from farandole.job import context
from farandole.job.config.settings import Settings
from farandole.strategies.codec_context import CodecContext
from farandole.strategies.codecs import codec
from farandole.strategies.inner_optimizer import InnerOptimizer, of_named, unsuited
from farandole.strategies.specs import strategy_of
from tests.kits.messages import mentions

SGD = InnerOptimizer("SGD", 0.1, Momentum(0.9))
PLAIN = InnerOptimizer("SGD", 0.1)
ADAM = InnerOptimizer("Adam", 0.001, adaptive=True)


@pytest.mark.parametrize(
    ("inner", "spec", "strategy", "values"),
    [
        (SGD, "sign:0.9", "", ["sign:0.9", "0.1", "0.9", "1", "0.001"]),
        (ADAM, "onebit", "", ["onebit", "Adam", "int8"]),
        (ADAM, "topk:0.05", "", ["topk:0.05", "Adam", "powersgd:2"]),
        (ADAM, "net:randomk:0.1", "", ["net:randomk:0.1", "Adam"]),
        (SGD, "", "diloco:8", ["diloco:8", "7", "0.9", "momentum=0.5"]),
        (SGD, "int8", "bmuf:8", ["bmuf:8", "2", "0.9"]),
    ],
)
def test_optimizers_that_do_not_go_with_it(
    inner: InnerOptimizer, spec: str, strategy: str, values: list[str]
) -> None:
    chosen: Any = strategy_of(strategy) if strategy else None
    (found,) = unsuited("DistributedOptimizer", inner, codec(spec), chosen)
    assert found.code == "FAR031"
    assert mentions(found.message, "DistributedOptimizer", *values)


@pytest.mark.parametrize(
    ("inner", "spec", "strategy"),
    [
        (SGD, "onebit", ""),
        (SGD, "topk:0.05", ""),
        (SGD, "randomk:0.1", ""),
        (PLAIN._replace(rate=0.004), "sign:0.9", ""),
        (PLAIN._replace(rate=0.0), "sign:0.9", ""),  # it is not known
        (ADAM, "sign", ""),
        (ADAM, "int8", ""),
        (ADAM, "powersgd:2", ""),
        (ADAM, "threshold:0.01", ""),
        (ADAM, "topk:0.05", "local_sgd:8"),
        (SGD, "int8", "local_sgd:8"),
        (PLAIN, "", "diloco:8"),
        (ADAM, "", "diloco:8"),
        (SGD, "", "diloco:8,lr=0.7,momentum=0.5"),
    ],
)
def test_optimizers_that_go_with_it(inner: InnerOptimizer, spec: str, strategy: str) -> None:
    chosen: Any = strategy_of(strategy) if strategy else None
    assert unsuited("DistributedOptimizer", inner, codec(spec), chosen) == []


class Followed:
    """A codec that records its notifications."""

    spec = "followed"

    def __init__(self) -> None:
        self.received: list[Mapping[str, Momentum]] = []

    def follow(self, momenta: Mapping[str, Momentum]) -> None:
        self.received.append(momenta)


def test_a_codec_is_notified_of_each_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "settings", Settings)
    monkeypatch.setattr(context, "rank", lambda: 0)
    followed: Any = Followed()
    groups = [SGD, PLAIN]
    facts = CodecContext(followed, "test")
    facts.update("a", lambda: ["x", "y"])
    assert followed.received == []
    facts.inner = lambda: groups
    facts.group_of = lambda: [0, 1]
    facts.update("a", lambda: ["x", "y"])
    facts.update("a", lambda: ["x", "y"])
    groups = [SGD._replace(rate=0.01), PLAIN]
    facts.update("a", lambda: ["x", "y"])
    assert followed.received == [{"x": Momentum(0.9), "y": Momentum()}]
    groups = [SGD._replace(momentum=Momentum(0.8)), PLAIN]
    facts.update("a", lambda: ["x", "y"])
    facts.update("b", lambda: ["v", "w"])
    assert followed.received[1:] == [
        {"x": Momentum(0.8), "y": Momentum()},
        {"v": Momentum(0.8), "w": Momentum()},
    ]


def test_facts_come_from_class_and_attributes() -> None:
    def optimizer(name: str, **attributes: Any) -> Any:
        return type(name, (), attributes)()

    assert of_named(optimizer("SGD", momentum=0.9, nesterov=True), 0.1) == InnerOptimizer(
        "SGD", 0.1, Momentum(0.9, True)
    )
    assert of_named(optimizer("NAG", momentum=0.8)).momentum == Momentum(0.8, True)
    assert of_named(optimizer("MomentumOptimizer", _momentum=0.7)).momentum == Momentum(0.7)
    assert of_named(optimizer("RMSprop", momentum=0.9)) == InnerOptimizer("RMSprop", adaptive=True)
    assert of_named(optimizer("AdamW"), object()) == InnerOptimizer("AdamW", adaptive=True)
    assert of_named(optimizer("SGD", momentum=object())).momentum == Momentum()
