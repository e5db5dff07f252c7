"""``farandole run --config-file``: options by name, in YAML."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.errors import SettingsError, did_you_mean
from farandole.job.launch import config_file

NOT_HERE = ("help", "config-file")
PLACES = ("hosts", "hostfile")  # mutually exclusive options


def fill(options: argparse.Namespace, made: argparse.ArgumentParser, path: str) -> None:
    """Set ``options`` that the command line lacks (None) from the file.

    Names are long flags, with ``-`` or ``_``. ``options.from_file`` records the place of each.
    Raises SettingsError for unknown names and for values of the wrong type.
    """
    known = {
        name.removeprefix("--"): action
        for action in made._actions
        for name in action.option_strings
        if name.startswith("--")
    }
    for name in NOT_HERE:
        del known[name]
    given = [dest for dest in PLACES if getattr(options, dest) is not None]
    options.from_file = {}
    for key, value in config_file.read(path, holds="options by name (np: 2)").items():
        where = f"{path}: {key}"
        if isinstance(value, dict):
            raise SettingsError(
                f"{where}: only horovodrun reads sections; write options at the top level (np: 2)"
            )
        action = known.get(str(key).replace("_", "-"))
        if action is None:
            near = did_you_mean(str(key).replace("_", "-"), known)
            raise SettingsError(f"{where}: unknown option {str(key)!r}{near}")
        if (
            value is not None
            and getattr(options, action.dest) is None
            and not (given and action.dest in PLACES)
        ):
            setattr(options, action.dest, _value(where, action, value))
            names = (*action.option_strings, action.dest.removeprefix("setting_"))
            options.from_file[action.dest] = config_file.ValueSource(where, names)
    if not given and all(dest in options.from_file for dest in PLACES):
        raise SettingsError(
            f"{path}: {' and '.join(PLACES)} are mutually exclusive: use only one of them"
        )


def _value(where: str, action: argparse.Action, value: Any) -> str | bool:
    """Return the value as on the command line: text, or a bool for a flag without a value."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise SettingsError(f"{where}={value!r} must be true or false")
        return value
    flag = next(name for name in action.option_strings if name.startswith("--"))
    word = "on" if value else "off"  # YAML parses these words as booleans
    if isinstance(value, bool) and word in str(action.metavar).split("|"):
        return word
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise SettingsError(
            f"{where}={value!r} must be text or a number, as on the command line after {flag}"
        )
    return str(value)
