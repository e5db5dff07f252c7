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


def require_file_system(url: str, purpose: str) -> None:
    """Import the file system of fsspec for ``url``, without a connection.

    ``purpose`` is the use of the URL, for the message. Raises ImportError with the package to
    install if it is missing, and ValueError if fsspec does not support the URL's protocol.
    """
    registry = require("fsspec.registry", purpose)
    protocol = url.partition("://")[0].partition("::")[0]
    try:
        registry.get_filesystem_class(protocol)
    except ImportError as error:
        # fsspec chains its own error, which gives advice, to the import's error.
        package = getattr(error.__cause__ or error, "name", None) or f"fsspec[{protocol}]"
        package = package.split(".")[0]
        raise ImportError(
            f"{purpose} needs {package}, which cannot be imported here: pip install {package}",
            name=package,
        ) from None
