"""Files that a job writes according to its settings.

A job started by one of its ranks inherits the variables that name the files, but must not write to
the same files.
"""

from __future__ import annotations

from collections.abc import Mapping

from farandole.job.config import Settings
from farandole.job.config.fields import variables

FILES = "FARANDOLE_FILES"  # the variable with the files of this rank's job, one per line
DYNAMIC = "DYNAMIC"  # replaces a timeline's file name, which is then passed to start_timeline()


def files(settings: Settings) -> str:
    """Return the value of ``FILES``."""
    timeline = "" if settings.timeline == DYNAMIC else settings.timeline
    return "\n".join(filter(None, (timeline, settings.autotune_log, settings.commit_dir)))


def of_outer_job(env: Mapping[str, str]) -> set[str]:
    """Return the variables in ``env`` that name files of the job to which this rank belongs."""
    known, taken = variables(Settings), env.get(FILES, "").split("\n")
    return {name for name, text in env.items() if name in known and text and text in taken}
