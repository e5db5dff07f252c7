"""MXNet, without another contender: its distributed training needs servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mxnet as mx

import farandole.mxnet as hvd
from benchmarks.samples import ALONE, OURS, TOGETHER
from benchmarks.steps import BATCH, CLASSES, LEARNING_RATE, MOMENTUM

if TYPE_CHECKING:
    from benchmarks.crew import Plan

nn = mx.gluon.nn
SHAPES = {"mlp": (BATCH, 1024), "conv_net": (BATCH, 1, 28, 28)}


def network(model: str) -> Any:
    net = nn.HybridSequential()
    if model == "mlp":
        net.add(nn.Dense(2048, activation="relu"), nn.Dense(1024, activation="relu"))
    else:
        net.add(
            nn.Conv2D(32, 3, activation="relu"),
            nn.Conv2D(64, 3, activation="relu"),
            nn.MaxPool2D(2),
        )
        net.add(nn.Dense(128, activation="relu"))
    net.add(nn.Dense(CLASSES))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    return net


class Team:
    """See ``steps.Team``."""

    def turns(self, model: str) -> dict[str, Callable[[], object]]:
        mx.random.seed(0)
        images = mx.nd.random.normal(shape=SHAPES[model])
        labels = mx.nd.random.randint(0, CLASSES, (BATCH,)).astype("float32")
        return {
            name: trainer(network(model), images, labels, name) for name in (ALONE, TOGETHER, OURS)
        }

    def close(self) -> None:
        hvd.shutdown()


def connect(rank: int, plan: Plan) -> Team:
    hvd.init()
    return Team()


def trainer(net: Any, images: Any, labels: Any, name: str) -> Callable[[], object]:
    """Return a function that takes one step."""
    options = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
    parameters = net.collect_params()
    if name == OURS:
        optimizer = hvd.DistributedTrainer(parameters, "sgd", options)
    else:
        optimizer = mx.gluon.Trainer(parameters, "sgd", options, kvstore=None)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def step() -> None:
        with mx.autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        optimizer.step(BATCH)
        mx.nd.waitall()

    return step
