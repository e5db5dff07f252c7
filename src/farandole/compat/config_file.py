"""Horovod's configuration file: the flags of ``horovodrun`` in YAML."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.compat.flags import OWN, TUNABLE, Flag
from farandole.errors import SettingsError
from farandole.job.launch import config_file
from farandole.job.launch.config_file import ValueSource

CONTROLLERS = ("mpi", "gloo", "jsrun")
_BY_PLACE = {(flag.section, flag.key): flag for flag in (*OWN, *TUNABLE) if flag.key}
_SECTIONS = sorted({section for section, _ in _BY_PLACE if section} | {"stall_check"})


def read(path: str) -> dict[str, Any]:
    """Return the file's content."""
    holds = f"sections ({', '.join(_SECTIONS)})"
    return config_file.read(path, holds=holds)


def apply(options: argparse.Namespace, path: str, content: dict[str, Any]) -> list[str]:
    """Set the options missing on the command line; return warnings about unknown entries of the
    file.

    ``options.from_file`` records the places in the file.
    """
    unknown = []
    controller = content.get("controller")
    if controller is not None:
        if str(controller).lower() not in CONTROLLERS:
            raise SettingsError(
                f"{path}: controller={controller!r}: No such controller supported: {controller}"
            )
        if not any(getattr(options, f"use_{name}") for name in CONTROLLERS):
            name = str(controller).lower()
            setattr(options, f"use_{name}", True)
            options.from_file[f"use_{name}"] = ValueSource(
                f"{path}: controller={controller!r}", (f"--{name}",)
            )
    for section, value in content.items():
        if section in _SECTIONS and isinstance(value, dict):
            for key, entry in value.items():
                where = f"{path}: {section}.{key}"
                if (section, key) == ("stall_check", "enabled"):
                    _fill(
                        options,
                        next(flag for flag in TUNABLE if flag.no == "--stall-check"),
                        entry,
                        where,
                    )
                elif (section, key) in _BY_PLACE:
                    _fill(options, _BY_PLACE[section, key], entry, where)
                else:
                    unknown.append(f"{section}.{key}")
        elif ("", section) in _BY_PLACE:
            _fill(options, _BY_PLACE["", section], value, f"{path}: {section}")
        elif section in _SECTIONS and value is not None:
            raise SettingsError(
                f"{path}: {section}={value!r} must be a section: lines of key: value"
            )
        elif section != "controller" and not (section in _SECTIONS and value is None):
            unknown.append(str(section))
    return [f"ignoring the unknown option {name} in the configuration file" for name in unknown]


def _fill(options: argparse.Namespace, flag: Flag, value: Any, where: str) -> None:
    """Set an option from the file, if it is missing.

    ``where`` is the file and the key. A key without "no" negates a flag with "no".
    """
    if value is None or getattr(options, flag.dest) is not None:
        return
    wanted: tuple[type, ...] = (int, float) if flag.kind is float else (flag.kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and flag.kind is not bool):
        raise SettingsError(f"{where}={value!r} must be of type {flag.kind.__name__}")
    setattr(options, flag.dest, not value if flag.no == "--stall-check" else value)
    options.from_file[flag.dest] = ValueSource(
        where, (*flag.names, flag.dest, *([flag.variable] if flag.variable else []))
    )
