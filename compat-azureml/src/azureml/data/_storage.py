"""The files of a workspace: datasets, datastores, models and secrets."""

from __future__ import annotations

import os
import re
from typing import Any

from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import make_private

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.\- ]{0,254}"


def workspace_folder(workspace: Any, kind: str, *names: str) -> str:
    """Return the path of a folder of a workspace; create it readable only by this user."""
    return make_private(os.path.join(workspace._storage(kind), *names))


def checked_name(name: str, what: str) -> str:
    """Return ``name``. Raises UserErrorException if it cannot name ``what`` in a workspace."""
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise UserErrorException(
            f"the name {name!r} of the {what} must have 1 to 255 letters, digits, spaces, '_', '-'"
            " or '.', and begin with a letter or a digit"
        )
    return name


def json_names(folder: str) -> list[str]:
    """Return the names of the JSON files of a folder, without their extension, sorted."""
    return sorted(name[: -len(".json")] for name in os.listdir(folder) if name.endswith(".json"))
