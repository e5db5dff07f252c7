"""TensorFlow with tf_keras models, compared with MultiWorkerMirroredStrategy, which works only with
such models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras

import farandole.tensorflow as hvd
from benchmarks.samples import ALONE, MIRRORED, OURS, TOGETHER
from benchmarks.steps import BATCH, CLASSES, LEARNING_RATE, MOMENTUM, meet

if TYPE_CHECKING:
    from benchmarks.crew import Plan

layers = tf_keras.layers
SHAPES = {"mlp": (BATCH, 1024), "conv_net": (BATCH, 28, 28, 1)}


def network(model: str) -> Any:
    if model == "mlp":
        inner = [layers.Dense(2048, activation="relu"), layers.Dense(1024, activation="relu")]
    else:
        inner = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
        ]
    return tf_keras.Sequential([layers.Input(SHAPES[model][1:]), *inner, layers.Dense(CLASSES)])


class Team:
    """See ``steps.Team``."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def turns(self, model: str) -> dict[str, Callable[[], object]]:
        tf.random.set_seed(0)
        images = tf.random.normal(SHAPES[model])
        labels = tf.random.uniform((BATCH,), maxval=CLASSES, dtype=tf.int64)
        turns: dict[str, Callable[[], object]] = {
            name: trainer(network(model), images, labels, name) for name in (ALONE, TOGETHER, OURS)
        }
        with self.strategy.scope():
            turns[MIRRORED] = trainer(network(model), images, labels, MIRRORED, self.strategy)
        return turns

    def close(self) -> None:
        hvd.barrier()
        hvd.shutdown()


def connect(rank: int, plan: Plan) -> Team:
    """Connect. The strategy is created first, because TensorFlow requires it before any
    operation.
    """
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": meet(rank, plan.size)}, "task": task}
    )
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    hvd.init()
    return Team(strategy)


def trainer(
    model: Any, images: Any, labels: Any, name: str, strategy: Any = None
) -> Callable[[], object]:
    """Return a function that takes one step, as a custom loop does."""
    optimizer = tf_keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    count = strategy.num_replicas_in_sync if strategy else 1

    def replica_step() -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, model(images, training=True)
            )
            loss = tf.reduce_sum(losses) / (BATCH * count)
        if name == OURS:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    if strategy is None:
        return tf.function(replica_step)
    return tf.function(lambda: strategy.run(replica_step))
