"""Lazy package attributes: modules that may import a framework are loaded when their names are
used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for ``package``.

    ``modules`` maps each module of the package to the names that it provides.
    """
    home = {name: f"{package}.{module}" for module, given in modules.items() for name in given}

    def attribute(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return attribute, listed
