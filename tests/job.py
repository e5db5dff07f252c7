"""A job inside a test: ``job(n, fn)`` runs ``fn(rank)`` in n processes that have been through ``init()``, so to say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from tests import pool


def job(n: int, fn: Callable[[int], Any], *, wire: str = "", deadline: float = 100.0, **settings: Any) -> list[Any]:
    """The results of ``fn(rank)`` of all ranks, over ``wire`` ("shm" or "tcp"), with ``Settings(**settings)``."""

    def body(transport: Any) -> Any:
        from farandole import context
        from farandole.config import Connection, Placement, Settings

        placement = Placement(rank=transport.rank, size=n, local_rank=transport.rank, local_size=n)
        context._enter(placement, Settings(**settings), transport, Connection())
        try:
            return fn(transport.rank)
        except BaseException as error:
            context.engine().abort(f"rank {transport.rank} failed: {error!r}")
            raise
        finally:
            context.shutdown()

    cloudpickle.register_pickle_by_value(sys.modules[fn.__module__])  # test modules need not be importable over there
    return pool.procs(n, body, wire=wire, deadline=deadline)
