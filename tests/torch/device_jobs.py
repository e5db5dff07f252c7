"""Jobs with tensors on a simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.run_job import job
from tests.torch.pretend import Pretend, pretending

torch = pytest.importorskip("torch", reason="torch is not installed")

ALL: Callable[[Any], bool] = lambda tensor: True  # noqa: E731

WAYS = ["direct", "staged"]


def device_job(
    n: int,
    fn: Callable[[int, Pretend], Any],
    way: str = "direct",
    *,
    counts: Callable[[Any], bool] = ALL,
    **options: Any,
) -> list[Any]:
    """Run ``job`` with ranks that have a device each, or share one: then tensors go through host
    memory.
    """

    def body(rank: int) -> Any:
        with pretending(Pretend(f"GPU-{rank if way == 'direct' else 0}", counts=counts)) as pretend:
            return fn(rank, pretend)

    return job(n, body, store=True, **options)
