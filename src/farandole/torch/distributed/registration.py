"""The name under which torch.distributed knows the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import distributed

NAME = "farandole"


def register(create: Callable[[Any, Any], Any]) -> None:
    """Tell torch.distributed, once. ``create``: makes a group of its options and those of the backend."""
    if NAME.upper() not in distributed.Backend._plugins:
        distributed.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
