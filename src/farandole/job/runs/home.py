"""The home of all runs: their folders, names and numbers.

``$FARANDOLE_HOME`` (default ``~/.local/share/farandole``) contains the folders
``runs/<experiment>/<run id>``, ``targets``, ``environments`` and ``inputs``. Files that need a
local file system and can be rebuilt, such as the index, are elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder, make_private, read_json, write_json

HOME_VARIABLE = "FARANDOLE_HOME"
EXPERIMENT = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"


class RunsHome:
    """The folders of one user's runs."""

    def __init__(self, path: str | None = None) -> None:
        """``path``: by default ``$FARANDOLE_HOME``. No folder is created yet."""
        chosen = path or os.environ.get(HOME_VARIABLE) or _default()
        self.path = os.path.abspath(os.path.expanduser(chosen))

    @property
    def runs(self) -> str:
        return os.path.join(self.path, "runs")

    def folder(self, name: str) -> str:
        """Return the path of ``targets``, ``environments``, ``inputs`` or another folder; create it
        readable only by this user.
        """
        return make_private(os.path.join(self.path, name))

    def experiments(self) -> list[str]:
        return _listed(self.runs)

    def all_runs(self) -> Iterator[RunFolder]:
        """Yield the folders of all runs, in arbitrary order."""
        for experiment in self.experiments():
            for run_id in _listed(os.path.join(self.runs, experiment)):
                yield RunFolder(os.path.join(self.runs, experiment, run_id))

    def folders(self) -> Iterator[tuple[str, set[str]]]:
        """Yield the path of each experiment's folder with the ids of its runs."""
        for experiment in self.experiments():
            parent = os.path.join(self.runs, experiment)
            yield parent, set(_listed(parent))

    def find(self, run_id: str) -> RunFolder | None:
        """Return the folder of the run ``run_id``; None if there is none.

        ``run_id`` may also be the path of a run's folder anywhere.
        """
        if os.sep in run_id:
            folder = RunFolder(os.path.abspath(run_id))
            return folder if folder.exists() else None
        experiment = run_id.rsplit("_", 2)[0]
        for each in (experiment, *self.experiments()):
            folder = RunFolder(os.path.join(self.runs, each, run_id))
            if re.fullmatch(EXPERIMENT, each) and folder.exists():
                return folder
        return None

    def limit(self, experiment: str) -> int:
        """Return the largest number of active runs of an experiment; 0 means no limit."""
        data = read_json(os.path.join(self.path, "experiments", f"{experiment}.json"))
        return int((data or {}).get("most_active", 0))

    def set_limit(self, experiment: str, most_active: int) -> None:
        """Limit the number of active runs of an experiment; 0 removes the limit."""
        path = os.path.join(self.folder("experiments"), f"{check_experiment(experiment)}.json")
        write_json(path, {"most_active": most_active})

    def new_id(self, experiment: str) -> str:
        """Return an unused run id: ``<experiment>_<unix seconds>_<8 hexadecimal digits>``."""
        return f"{experiment}_{int(time.time())}_{secrets.token_hex(4)}"

    def next_number(self) -> int:
        """Return the next number in the order of submissions, independent of clocks."""
        path = os.path.join(self.folder("."), "sequence")
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number = int(file.read() or b"0") + 1
            file.seek(0)
            file.write(b"%d" % number)
            file.truncate()
            return number


def check_experiment(name: str) -> str:
    """Return ``name``. Raises SettingsError if it cannot name an experiment."""
    if not re.fullmatch(EXPERIMENT, name):
        raise SettingsError(
            f"the experiment's name {name!r} must have 1 to 100 letters, digits, '_', '-' or '.',"
            " and begin with a letter or a digit"
        )
    return name


def _default() -> str:
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return os.path.join(data, "farandole")


def _listed(path: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
