"""A training step in each framework: one file per framework, named for it.

``connect(rank, plan)`` of such a file joins this process to the job and, if the framework itself
can exchange gradients, to the framework's job; it returns a ``Team``. All frameworks train the same
models: an MLP and a convolutional network on random images, with batches of 32, SGD with momentum,
and one thread.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

BATCH, CLASSES = 32, 10
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
# (its title, the name of its model in each framework)
MODELS = [("MLP, 4.2 M parameters", "mlp"), ("conv net, 1.2 M parameters", "conv_net")]


class Team(Protocol):
    """The contenders of one framework, connected in this process."""

    def turns(self, model: str) -> Mapping[str, Callable[[], object]]:
        """Return, per contender, a function that takes one training step on this rank, and returns
        when it is done.
        """

    def close(self) -> None: ...


class Framework(NamedTuple):
    """The packages of a framework's benchmark."""

    packages: tuple[str, ...]
    environment: Mapping[str, str] = {}  # set before it is imported
    one_core: bool = False  # it uses as many threads as visible cores: "one process" would use two


_QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
FRAMEWORKS = {
    "torch": Framework(("torch",)),
    "tensorflow": Framework(("tensorflow", "tf_keras"), _QUIET_TENSORFLOW, one_core=True),
    "keras": Framework(("keras", "torch"), {"KERAS_BACKEND": "torch"}),
    "jax": Framework(
        ("jax", "optax"),
        {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
        one_core=True,
    ),
    "mxnet": Framework(("mxnet",), {"PYTHONWARNINGS": "ignore"}, one_core=True),
}


def meet(rank: int, size: int) -> list[str]:
    """Return a host and port of every rank, for the framework's servers."""
    from farandole.net.store import StoreClient

    store = StoreClient(os.environ["FARANDOLE_STORE"], os.environ["FARANDOLE_SECRET"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store.set(f"bench/address/{rank}", f"127.0.0.1:{free.getsockname()[1]}".encode())
    addresses = [store.get(f"bench/address/{peer}", timeout=60.0).decode() for peer in range(size)]
    store.close()
    return addresses
