"""The Python environment of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import POLICIES, EnvironmentSpec


class PreparedEnvironment(NamedTuple):
    """An environment that is ready.

    - ``python``: The interpreter of the ranks' programs.
    - ``variables``: Environment variables of the ranks.
    - ``notes``: Messages for the user.
    """

    python: str
    variables: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def check(spec: EnvironmentSpec, source: str) -> None:
    """Raise SettingsError for a specification that cannot be met."""
    if spec.policy not in POLICIES:
        raise SettingsError(
            f"the environment's policy {spec.policy!r} is none of {', '.join(POLICIES)}"
        )


def prepare(spec: EnvironmentSpec, folder: RunFolder, home: RunsHome) -> PreparedEnvironment:
    """Make the environment ready and return it."""
    return PreparedEnvironment(spec.python or sys.executable)
