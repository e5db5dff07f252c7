"""The environment variables of a submission, stored for its runner.

Variables may hold secrets, so they are stored outside the run's folder, readable by this user only,
and deleted when the run has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder, read_json, write_json
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import RunSpec

# TOKENIZERS_PARALLELISM of Hugging Face is not a secret. FARANDOLE_INPUT_<name> is a full URL.
_SECRET = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|^FARANDOLE_INPUT_", re.IGNORECASE
)


def withhold(spec: RunSpec) -> tuple[RunSpec, dict[str, str]]:
    """Return the spec with only the names of its secret variables, and separately their values.

    A variable is secret if its name contains TOKEN, SECRET, PASSWORD, PASSWD, KEY or CREDENTIAL. If
    the spec holds only the name of a variable, its value is taken from this process's environment.
    Raises SettingsError if the variable is not set there.
    """
    given = {name: text for name, text in spec.variables.items() if _SECRET.search(name)}
    missing = [
        name for name in spec.secret_variables if name not in given and name not in os.environ
    ]
    if missing:
        raise SettingsError(
            f"the run needs the environment variables {', '.join(missing)}, whose values are not"
            " stored with it; set them in this shell"
        )
    kept = {name: os.environ[name] for name in spec.secret_variables if name not in given}
    values = {**kept, **given}
    public = {name: text for name, text in spec.variables.items() if name not in given}
    return dataclasses.replace(spec, variables=public, secret_variables=tuple(values)), values


def restore(spec: RunSpec) -> RunSpec:
    """Return the spec with the values of its secret variables from this process's environment."""
    values = {name: os.environ[name] for name in spec.secret_variables if name in os.environ}
    return dataclasses.replace(spec, variables={**spec.variables, **values})


def save(home: RunsHome, folder: RunFolder, further: Mapping[str, str] = {}) -> None:
    """Store this process's variables, and ``further`` variables, for the run."""
    write_json(_path(home, folder), {**os.environ, **further})


def load(home: RunsHome, folder: RunFolder) -> dict[str, str]:
    """Return the stored variables of the run; if there are none, this process's environment."""
    found = read_json(_path(home, folder))
    return dict(os.environ) if found is None else found


def discard(home: RunsHome, folder: RunFolder) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(home.path, "variables", f"{folder.run_id}.json"))


def _path(home: RunsHome, folder: RunFolder) -> str:
    return os.path.join(home.folder("variables"), f"{folder.run_id}.json")
