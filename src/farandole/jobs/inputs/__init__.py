"""The named inputs of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import InputSpec


def check(specs: Sequence[InputSpec], command: Sequence[str]) -> None:
    """Raise SettingsError for an input that does not exist or that the command does not have."""
    for spec in specs:
        if "://" not in spec.source and not os.path.exists(spec.source):
            raise SettingsError(f"the input {spec.name!r} does not exist: {spec.source}")


def prepare(specs: Sequence[InputSpec], folder: RunFolder, home: RunsHome) -> dict[str, str]:
    """Make the inputs available on this host and return their paths by name."""
    return {spec.name: os.path.abspath(spec.source) for spec in specs}


def variables(specs: Sequence[InputSpec], paths: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that hold the paths of the inputs, by their names."""
    return {spec.name: paths[spec.name] for spec in specs}
