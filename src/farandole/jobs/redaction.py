"""Redaction of secrets and paths from texts that leave this machine, in reports and saved
notebooks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

# A name such as WANDB_API_KEY or access-token, but not tokens or design.
_SECRET_NAME = (
    r"(?:[\w.-]*[_.-])?(?:token|secret|password|passwd|pwd|credentials?|sig|signature"
    r"|(?:api|access|account|secret|private)[_-]?key)"
)
_ASSIGNED = re.compile(rf"(?i)\b({_SECRET_NAME})([\"']?\s*[=:]\s*[\"']?)([^\s&\"',;]+)")
_NAMED = re.compile(rf"(?i){_SECRET_NAME}")
_OPTION = re.compile(rf"(?i)(--{_SECRET_NAME})(=|\s+)(\S+)")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_AUTHORIZATION = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
# An absolute path with at least two parts; not the path of a URL.
_PATH = re.compile(r"(?<![\w.:/~-])(?:~|)/(?:[^\s/\"'<>:,;()\[\]]+/)+([^\s/\"'<>:,;()\[\]]*)")
_HIDDEN = "***"


def redacted(text: str, folder: str = "") -> str:
    """Return a text without secrets and without paths outside ``folder``, the run's folder.

    A secret is recognized by the preceding name, as in ``--api-key abc`` and ``TOKEN=abc``, or by
    its position in a URL or an authorization header. Paths inside the folder become relative to it;
    other absolute paths are reduced to their last part, as ``.../train.py``.
    """
    if folder:
        text = _inside(folder.rstrip(os.sep)).sub(lambda found: "" if found[1] else ".", text)
    text = _IN_URL.sub("", text)
    text = _AUTHORIZATION.sub(rf"\1 {_HIDDEN}", text)
    text = _OPTION.sub(rf"\1\2{_HIDDEN}", text)
    text = _ASSIGNED.sub(rf"\1\2{_HIDDEN}", text)
    return _PATH.sub(r".../\1", text)


def redacted_values(values: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return nested data with all text values redacted. Keys are unchanged."""
    return {name: _redacted(str(name), value, folder) for name, value in values.items()}


def redacted_value(name: str, text: str, folder: str = "") -> str:
    """Return the redacted text of a value whose name is separate, such as in the header of a table.

    The value of a secret, such as ``api_key`` or ``parameters.api_key``, becomes ``***``; any other
    text is redacted by ``redacted``.
    """
    return _HIDDEN if text and _NAMED.fullmatch(name) else redacted(text, folder)


def _redacted(name: str, value: Any, folder: str) -> Any:
    if isinstance(value, str):
        return redacted_value(name, value, folder)
    if isinstance(value, Mapping):
        return redacted_values(value, folder)
    if isinstance(value, (list, tuple)):
        return [_redacted(name, each, folder) for each in value]
    return value


def _inside(folder: str) -> re.Pattern[str]:
    """Return a pattern for ``folder`` with its separator, but not as part of a longer name.

    The folder of run 1 must not be found in the path of run 10.
    """
    return re.compile(rf"{re.escape(folder)}(?:({re.escape(os.sep)})|(?![\w-]|\.\w))")
