"""Passing the package indexes from pip's configuration to uv, which does not read it."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping

# pip's settings -> uv's variables
_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}


def uv_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make uv use pip's indexes.

    pip's variables ``PIP_...`` override its configuration files. Existing variables of uv are kept.
    As with pip, the newest version on any index is installed.
    """
    found = {}
    for name, value in {**_from_files(environment), **_from_variables(environment)}.items():
        variable = _SETTINGS.get(name)
        if variable and variable not in environment and value.strip():
            separator = "," if variable == "UV_FIND_LINKS" else " "
            found[variable] = separator.join(value.split())
    if "UV_INDEX" in found and "UV_INDEX_STRATEGY" not in environment:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return found


def _from_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name[4:].lower().replace("_", "-"): value
        for name, value in environment.items()
        if name.startswith("PIP_")
    }


def _from_files(environment: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if environment.get("PIP_CONFIG_FILE") == os.devnull:
        return found
    for path in _files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself reports the error
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update({k.replace("_", "-"): v for k, v in parser.items(section)})
    return found


def _files(environment: Mapping[str, str]) -> list[str]:
    """Return pip's configuration files: global, user, site, and ``$PIP_CONFIG_FILE``."""
    home = environment.get("HOME") or os.path.expanduser("~")
    system = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    own = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return [
        *(os.path.join(folder, "pip", "pip.conf") for folder in system.split(":")),
        "/etc/pip.conf",
        os.path.join(home, ".pip", "pip.conf"),
        os.path.join(own, "pip", "pip.conf"),
        os.path.join(sys.prefix, "pip.conf"),
        environment.get("PIP_CONFIG_FILE", ""),
    ]
