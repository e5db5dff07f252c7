"""Jobs on a backend of Keras, which a process chooses once: each backend has a separate pool of
processes.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests import pool
from tests.run_job import job

BACKENDS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
# to import: what concerns no backend is shown on this one
QUICK = "jax" if "jax" in BACKENDS else BACKENDS[-1]
_pools: dict[str, list[Any]] = {}


def on(
    backend: str, n: int, fn: Callable[[int], Any], *, deadline: float = 300.0, **settings: Any
) -> list[Any]:
    """Run ``job(n, fn)`` on a backend."""
    with _processes_of(backend):
        return job(n, fn, deadline=deadline, **settings)


@contextmanager
def _processes_of(backend: str) -> Iterator[None]:
    kept = os.environ.get("KERAS_BACKEND")
    common = list(pool._idle)
    pool._idle[:] = _pools.pop(backend, [])
    os.environ["KERAS_BACKEND"] = backend
    try:
        yield
    finally:
        _pools[backend] = list(pool._idle)
        pool._idle[:] = common
        if kept is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = kept


def end_all() -> None:
    """End the processes of all backends."""
    for backend in list(_pools):
        for process in _pools.pop(backend):
            process.end()
