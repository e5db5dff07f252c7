"""JAX, compared with ``jax.distributed``: one program over the devices of all processes, which
communicate by Gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
from benchmarks.samples import ALONE, OURS, SHARDED, TOGETHER
from benchmarks.steps import BATCH, CLASSES, LEARNING_RATE, MOMENTUM, meet

if TYPE_CHECKING:
    from benchmarks.crew import Plan

SHAPES = {"mlp": (BATCH, 1024), "conv_net": (BATCH, 28, 28, 1)}


def parameters(model: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "one": (1024, 2048),
        "two": (2048, 1024),
        "out": (1024, CLASSES),
    }
    if model == "conv_net":
        shapes = {
            "conv1": (3, 3, 1, 32),
            "conv2": (3, 3, 32, 64),
            "one": (9216, 128),
            "out": (128, CLASSES),
        }
    found = {}
    for name, shape in shapes.items():
        found[f"{name}.weight"] = random.standard_normal(shape, dtype=np.float32) / np.float32(
            np.prod(shape[:-1]) ** 0.5
        )
        found[f"{name}.bias"] = np.zeros(shape[-1], dtype=np.float32)
    return found


def logits(values: dict[str, Any], x: Any) -> Any:
    def dense(name: str, x: Any) -> Any:
        return x @ values[f"{name}.weight"] + values[f"{name}.bias"]

    if x.ndim == 4:
        for name in ("conv1", "conv2"):
            kernel = values[f"{name}.weight"]
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + values[f"{name}.bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(len(x), -1)
        return dense("out", jax.nn.relu(dense("one", x)))
    return dense("out", jax.nn.relu(dense("two", jax.nn.relu(dense("one", x)))))


def loss_of(values: dict[str, Any], images: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits(values, images), labels).mean()


class Team:
    """See ``steps.Team``."""

    def turns(self, model: str) -> dict[str, Callable[[], object]]:
        random = np.random.default_rng(1)
        images = random.standard_normal(SHAPES[model], dtype=np.float32)
        labels = random.integers(0, CLASSES, BATCH).astype(np.int32)
        given = parameters(model), images, labels
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        turns = {
            name: trainer(*jax.device_put(given, here), here, name)
            for name in (ALONE, TOGETHER, OURS)
        }
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
        copied = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        turns[SHARDED] = trainer(*over_all(mesh, copied, *given), copied, SHARDED)
        return turns

    def close(self) -> None:
        hvd.barrier()
        hvd.shutdown()
        jax.distributed.shutdown()


def connect(rank: int, plan: Plan) -> Team:
    (address, *_) = meet(rank, plan.size)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=plan.size, process_id=rank)
    hvd.init()
    return Team()


def over_all(
    mesh: Any, copied: Any, values: dict[str, Any], images: Any, labels: Any
) -> tuple[Any, Any, Any]:
    """Return replicated parameters, and one batch per device."""
    dealt = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))
    local = jax.make_array_from_process_local_data
    everywhere = {name: local(copied, value, value.shape) for name, value in values.items()}
    return everywhere, local(dealt, images), local(dealt, labels)


def trainer(
    values: dict[str, Any], images: Any, labels: Any, place: Any, name: str
) -> Callable[[], object]:
    """Return a function that takes one step. ``place``: the sharding of the parameters and the
    optimizer's state.
    """
    optimizer = optax.sgd(LEARNING_RATE, MOMENTUM)
    if name == OURS:
        optimizer = hvd.DistributedOptimizer(optimizer)
    state = jax.jit(optimizer.init, out_shardings=place)(values)

    @jax.jit
    def next_of(values: Any, state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        gradients = jax.grad(loss_of)(values, images, labels)
        updates, state = optimizer.update(gradients, state, values)
        return optax.apply_updates(values, updates), state

    def step() -> None:
        nonlocal values, state
        values, state = jax.block_until_ready(next_of(values, state, images, labels))

    return step
