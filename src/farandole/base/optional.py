"""Optional packages, imported on first use. An error for a missing package names the cure."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, purpose: str) -> Any:
    """Import and return ``module``.

    ``purpose`` is the use of the module, for the message. Raises ImportError with the package to
    install if the module is missing.
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
