"""PyTorch's import hook (the entry point ``torch.backends``).

It registers the backend name, and makes torch.distributed report invalid ranks instead of waiting.
Every program that imports torch runs this module, so it must not fail or import other modules.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import wraps
from typing import Any

NAME = "farandole"
_HOME = "farandole.torch.distributed"  # a higher package, imported when the backend is used

_REPORT = "farandole.job.report.uninitialized"


def register() -> None:
    """Make ``dist.init_process_group("farandole")`` work. Repeated calls do nothing."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    backend: Any = getattr(distributed, "Backend", None)
    if backend is not None and NAME.upper() not in getattr(backend, "_plugins", {NAME.upper()}):
        _watch_steps()
        backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        _keep_defaults(backend)
        _check_ranks(
            getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
        )


def _watch_steps() -> None:
    """In a rank, report the first step of an optimizer if ``init()`` has not been called."""
    add: Any = getattr(
        sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None
    )
    if add is None or os.environ.get("FARANDOLE_SIZE", "1") == "1":
        return

    first = [_REPORT]  # a hook cannot remove itself

    def after_step(*_: Any) -> None:
        if first:
            report: Any = importlib.import_module(first.pop())
            report.after_step()

    add(after_step)


def _keep_defaults(backend: Any) -> None:
    """Keep Gloo the default of ``init_process_group("cpu:gloo,cuda:gloo")``.

    torch makes it the group's default only if there are no plugins of any name. It lists plugins
    with ``keys()``, but looks up a plugin with ``in`` and ``[]``.
    """
    if type(backend._plugins) is dict:
        backend._plugins = _Plugins(backend._plugins)


class _Plugins(dict[str, Any]):
    def keys(self) -> Any:
        return {name: None for name in self if name != NAME.upper()}.keys()


def _check_ranks(handlers: dict[str, Any]) -> None:
    """Check the rank before torch waits for others.

    torch waits 30 minutes before it calls a backend, even as rank 2 of 1.
    """
    for scheme in ("env", "tcp"):
        if scheme in handlers:
            handlers[scheme] = _checked(handlers[scheme])


def _checked(handler: Any) -> Any:
    @wraps(handler)
    def handle(url: str, *args: Any, **named: Any) -> Any:
        given = dict(pair.partition("=")[::2] for pair in url.partition("?")[2].split("&"))
        rank, size = (
            given.get(name, os.environ.get(name.upper(), "")) for name in ("rank", "world_size")
        )
        if rank.removeprefix("-").isdecimal() and size.isdecimal():
            check_rank(int(rank), int(size))
        return handler(url, *args, **named)

    return handle


def check_rank(rank: int, size: int) -> None:
    """Raise SettingsError for a rank that is not valid for ``size``."""
    if not 0 <= rank < size:
        from farandole.errors import SettingsError

        raise SettingsError(
            f"invalid rank {rank} of {size} (arguments rank and world_size, or RANK and"
            " WORLD_SIZE in the environment): ranks are numbers from 0 to world size - 1. Give"
            " all ranks of a job the same world size; to train alone, use rank 0 of 1"
        )


def _create(options: Any, backend_options: Any) -> Any:
    module: Any = importlib.import_module(_HOME)
    return module.create(options, backend_options)
