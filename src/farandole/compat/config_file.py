"""Horovod's configuration file: the flags of ``horovodrun`` in YAML."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.compat.flags import OWN, TUNABLE, Flag
from farandole.errors import SettingsError
from farandole.launch import config_file

CONTROLLERS = ("mpi", "gloo", "jsrun")
_BY_PLACE = {(flag.section, flag.key): flag for flag in (*OWN, *TUNABLE) if flag.key}
_SECTIONS = sorted({section for section, _ in _BY_PLACE if section} | {"stall_check"})


def read(path: str) -> dict[str, Any]:
    """The file's content."""
    holds = f"sections ({', '.join(_SECTIONS)})"
    return config_file.read(path, extra="farandole-horovod[yaml]", holds=holds)


def apply(options: argparse.Namespace, content: dict[str, Any]) -> list[str]:
    """Fill in the options missing on the command line; warnings about unknown entries of the file."""
    unknown = []
    controller = content.get("controller")
    if controller is not None:
        if str(controller).lower() not in CONTROLLERS:
            raise SettingsError(f"No such controller supported: {controller}")
        if not any(getattr(options, f"use_{name}") for name in CONTROLLERS):
            setattr(options, f"use_{str(controller).lower()}", True)
    for section, value in content.items():
        if section in _SECTIONS and isinstance(value, dict):
            for key, entry in value.items():
                if (section, key) == ("stall_check", "enabled"):
                    _fill(options, next(flag for flag in TUNABLE if flag.no == "--stall-check"), not entry)
                elif (section, key) in _BY_PLACE:
                    _fill(options, _BY_PLACE[section, key], entry)
                else:
                    unknown.append(f"{section}.{key}")
        elif ("", section) in _BY_PLACE:
            _fill(options, _BY_PLACE["", section], value)
        elif section != "controller" and not (section in _SECTIONS and value is None):
            unknown.append(str(section))
    return [f"the configuration file's {name} is not known, and left out" for name in unknown]


def _fill(options: argparse.Namespace, flag: Flag, value: Any) -> None:
    if value is None or getattr(options, flag.dest) is not None:
        return
    wanted: tuple[type, ...] = (int, float) if flag.kind is float else (flag.kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and flag.kind is not bool):
        raise SettingsError(
            f"the configuration file's {flag.section}.{flag.key}={value!r} must be of type {flag.kind.__name__}"
        )
    setattr(options, flag.dest, value)
