"""Ranks of torch.distributed in processes of the pool."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests import pool


def error_of(call: Any) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def members(
    n: int,
    fn: Callable[[int], Any],
    *,
    backend: str = "farandole",
    timeout: float = 60.0,
    wire: str = "auto",
    deaths: bool = False,
) -> list[Any]:
    """Return the results of ``fn(rank)`` on n ranks after ``init_process_group(backend)``."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        return pool.spread(
            n, lambda rank: _member(rank, n, store, backend, timeout, wire, fn), deaths=deaths
        )


def _member(
    rank: int, n: int, store: str, backend: str, timeout: float, wire: str, fn: Callable[[int], Any]
) -> Any:
    import torch
    from torch import distributed as dist

    import farandole.torch.distributed  # noqa: F401

    torch.set_num_threads(1)
    os.environ["FARANDOLE_TRANSPORT"] = wire
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=n,
        timeout=timedelta(seconds=timeout),
    )
    try:
        return fn(rank)
    finally:
        dist.destroy_process_group()
        del os.environ["FARANDOLE_TRANSPORT"]
