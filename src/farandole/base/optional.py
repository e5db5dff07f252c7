"""Optional packages: imported when they are used. A missing one is reported with the cure."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, purpose: str) -> Any:
    """Import and return ``module``. ImportError that says what to install if it is missing.
    ``purpose``: the use of the module, for the message.
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
