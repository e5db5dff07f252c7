"""``Keyvault``: the secrets of a workspace.

A secret is an entry of a file that only this user can read, or an environment variable. The file is
outside the folders of runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from azureml.data._storage import workspace_folder
from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import read_json, write_json


class Keyvault:
    """The secrets of a workspace. The file comes first, then environment variables.

    Environment variables such as ``USER`` or ``PATH`` must not override stored secrets ``user`` or
    ``path``.
    """

    def __init__(self, workspace: Any) -> None:
        self._path = os.path.join(workspace_folder(workspace, "secrets"), "secrets.json")

    def get_secret(self, name: str) -> str:
        """Return a secret.

        The value of ``set_secret`` comes first, then the environment variable ``name``, then the
        variable in capitals with underscores (``DB_PASSWORD`` for ``db-password``). Raises
        UserErrorException if there is none.
        """
        return str(self.get_secrets([name])[name])

    def get_secrets(self, secrets: Sequence[str]) -> dict[str, str]:
        """Return secrets by name. Raises UserErrorException if one does not exist."""
        stored = self._stored()
        found = {}
        for name in secrets:
            variable = _variable(name)
            value = stored.get(name, os.environ.get(name, os.environ.get(variable)))
            if value is None:
                raise UserErrorException(
                    f"there is no secret {name!r}; set the environment variable {variable}, or"
                    f" call set_secret({name!r}, value)"
                )
            found[name] = value
        return found

    def set_secret(self, name: str, value: str) -> None:
        """Store a secret in the file."""
        self.set_secrets({name: value})

    def set_secrets(self, secrets_batch: Mapping[str, str]) -> None:
        """Store secrets in the file."""
        self._store({**self._stored(), **secrets_batch})

    def delete_secret(self, name: str) -> None:
        """Remove a secret from the file."""
        self.delete_secrets([name])

    def delete_secrets(self, secrets: Sequence[str]) -> None:
        """Remove secrets from the file."""
        self._store({key: text for key, text in self._stored().items() if key not in secrets})

    def list_secrets(self) -> list[dict[str, str]]:
        """Return the names of the secrets in the file."""
        return [{"name": name} for name in sorted(self._stored())]

    def _stored(self) -> dict[str, str]:
        return dict(read_json(self._path) or {})

    def _store(self, secrets: dict[str, str]) -> None:
        write_json(self._path, secrets)
        os.chmod(self._path, 0o600)


def _variable(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name).upper()
