"""Warnings about valid but implausible values, and about misspelt variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farandole.errors import nearest
from farandole.job.config.fields import settings_of, variables
from farandole.job.config.horovod import HOROVOD_FIXED
from farandole.job.config.placement import Connection, Placement
from farandole.job.config.settings import Settings


def doubts(settings: Settings, env: Mapping[str, str]) -> list[str]:
    """Return warnings about implausible values, such as sizes in the wrong unit, and about
    misspelt variables of Farandole.
    """
    found = []
    for setting in settings_of(Settings):
        value = getattr(settings, setting.name)
        low, high = setting.plausible
        if setting.kind in (int, float) and value and not low <= value <= high:
            is_size = setting.scale != 1.0
            amount = f"{_plain(value / setting.scale)} {setting.unit}".rstrip()
            amount = f"{value} bytes ({amount})" if is_size else amount
            horovod = (
                f"; {setting.horovod} counts {'bytes' if is_size else setting.unit}"
                if setting.horovod
                else ""
            )
            usual = (
                f"are in {setting.unit}"
                if setting.unit
                else f"are usually from {low:g} to {high:g}"
            )
            default = f"{setting.shown(setting.default)} {setting.unit}".rstrip()
            found.append(
                f"{setting.name} is {amount}, which is unlikely to be intended: {setting.flag}"
                f" and {setting.variable} {usual}{horovod} (default: {default})"
            )
    return [*found, *_misspelt(env)]


def _misspelt(env: Mapping[str, str]) -> Iterator[str]:
    real = sorted(variables(Placement, Connection, Settings))
    flags = {
        setting.flag.removeprefix("--").replace("-", "_").upper(): setting.variable
        for setting in settings_of(Settings)
    }
    # Horovod has variables that Farandole does not support, and some have names similar to
    # supported ones.
    for prefix, alike, also in (("FARANDOLE_", 0.75, flags), ("HOROVOD_", 0.85, {})):
        known = {name.removeprefix(prefix): name for name in real if name.startswith(prefix)}
        for name in sorted(env):
            if name.startswith(prefix) and name not in real and name not in HOROVOD_FIXED:
                near = nearest(name.removeprefix(prefix), known | also, alike)
                if near:
                    yield (
                        f"the environment has {name}, which is not a setting; did you mean"
                        f" {(known | also)[near]}?"
                    )


def _plain(value: float) -> str:
    """Format a number for messages, without an exponent; a very small number has three digits."""
    return (
        text
        if "e" not in (text := f"{value:.15g}")
        else f"{value:.{max(0, 2 - int(text.partition('e')[2]))}f}"
    )
