"""What PyTorch calls when it is imported (the entry point ``torch.backends``): it makes a word known, no more.

Every program that imports torch comes here, so nothing may fail, and nothing else is loaded.
"""

from __future__ import annotations

import importlib
import sys
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


def _keep_defaults(backend: Any) -> None:
    """``init_process_group("cpu:gloo,cuda:gloo")`` makes Gloo the default of the group only while there is no plugin,
    of whatever name: it asks for ``keys()``, and finds a plugin by ``in`` and ``[]``."""
    if type(backend._plugins) is dict:
        backend._plugins = _Plugins(backend._plugins)


class _Plugins(dict[str, Any]):
    def keys(self) -> Any:
        return {name: None for name in self if name != NAME.upper()}.keys()


def _create(options: Any, backend_options: Any) -> Any:
    module: Any = importlib.import_module(_HOME)
    return module.create(options, backend_options)
