"""Packages that only some programs need: imported when they are used, with the cure where they are
missing.
"""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, purpose: str) -> Any:
    """The module; ImportError that says what to install. ``purpose``: what is done with it, for the
    message.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{purpose} needs {package}, which cannot be imported here ({error}): pip install"
            f" {package}",
            name=package,
        ) from error
