"""The files that a job writes by its settings. A job that one of its ranks starts inherits the
variables that name them, and must write others.
"""

from __future__ import annotations

from collections.abc import Mapping

from farandole.job.config import Settings
from farandole.job.config.fields import variables

FILES = "FARANDOLE_FILES"  # the variable that holds those of this rank's job, a line each
DYNAMIC = "DYNAMIC"  # in the place of a timeline's file: start_timeline() names it


def files(settings: Settings) -> str:
    """The value of ``FILES``."""
    timeline = "" if settings.timeline == DYNAMIC else settings.timeline
    return "\n".join(filter(None, (timeline, settings.autotune_log)))


def of_outer_job(env: Mapping[str, str]) -> set[str]:
    """The variables in ``env`` that name files of the job of which this process is a rank."""
    known, taken = variables(Settings), env.get(FILES, "").split("\n")
    return {name for name, text in env.items() if name in known and text and text in taken}
