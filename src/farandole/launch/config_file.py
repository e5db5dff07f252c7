"""A file of options in YAML, for every command that starts jobs."""

from __future__ import annotations

import importlib
from typing import Any

from farandole.errors import SettingsError


def read(path: str, *, extra: str, holds: str) -> dict[Any, Any]:
    """The file's content. ``extra``: what to install where PyYAML is missing; ``holds``: what the file is made of.

    Raises SettingsError for a file that cannot be read or holds something else."""
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise SettingsError(f"--config-file needs PyYAML, which is not installed: pip install {extra!r}") from None
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"--config-file {path!r} cannot be read: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config-file {path!r} must hold {holds}, not {content!r}")
    return content
