"""Names of a package whose modules are imported when a name is used: each may bring a framework."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``package``. ``modules``: the names that each of its
    modules gives.
    """
    home = {name: f"{package}.{module}" for module, given in modules.items() for name in given}

    def attribute(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return attribute, listed
