"""What PyTorch calls when it is imported (the entry point ``torch.backends``): it makes a word
known, and has torch.distributed tell of ranks that cannot be, where it would wait.

Every program that imports torch comes here, so nothing may fail, and nothing else is loaded.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import wraps
from typing import Any

NAME = "farandole"
_HOME = "farandole.torch.distributed"  # a room above, which is loaded when the word is used


def register() -> None:
    """Make ``dist.init_process_group("farandole")`` work. Again: nothing."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    backend: Any = getattr(distributed, "Backend", None)
    if backend is not None and NAME.upper() not in getattr(backend, "_plugins", {NAME.upper()}):
        backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        _keep_defaults(backend)
        _check_ranks(
            getattr(sys.modules.get("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
        )


def _keep_defaults(backend: Any) -> None:
    """``init_process_group("cpu:gloo,cuda:gloo")`` makes Gloo the default of the group only while
    there is no plugin, of whatever name: it asks for ``keys()``, and finds a plugin by ``in`` and
    ``[]``.
    """
    if type(backend._plugins) is dict:
        backend._plugins = _Plugins(backend._plugins)


class _Plugins(dict[str, Any]):
    def keys(self) -> Any:
        return {name: None for name in self if name != NAME.upper()}.keys()


def _check_ranks(handlers: dict[str, Any]) -> None:
    """torch waits for others, 30 minutes, before it calls a backend: also as rank 2 of 1."""
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
    """Raise SettingsError for a rank that ``size`` does not allow."""
    if not 0 <= rank < size:
        from farandole.errors import SettingsError

        raise SettingsError(
            f"this process is to be rank {rank} of {size} (arguments rank and world_size, else RANK"
            " and WORLD_SIZE of the environment), and ranks are numbers from 0 to world size - 1."
            " Give all ranks of a job the same world size; a process that is to train alone is"
            " rank 0 of 1"
        )


def _create(options: Any, backend_options: Any) -> Any:
    module: Any = importlib.import_module(_HOME)
    return module.create(options, backend_options)
