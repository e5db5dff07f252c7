"""The files of a run under the SDK's names.

``outputs/...`` and ``logs/...`` are the files that a program writes to these folders, and
``user_logs/...`` the output of its ranks. A file that is uploaded under another name is kept in the
run's outputs too; the record of the upload distinguishes the names.
"""

from __future__ import annotations

import os
from pathlib import Path

from azureml._farandole.journal import tracker_of
from azureml._farandole.pages import file_url
from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import RunFolder
from farandole.job.tracking import files
from farandole.job.tracking.tracker import ARTIFACT
from farandole.jobs import outputs

_OUTPUTS, _LOGS = "outputs/", "logs/"


class RunFiles:
    """The files of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def paths(self) -> dict[str, str]:
        """Return the paths of all files by name, sorted."""
        root = self._folder.file("outputs")
        uploaded = self._uploaded()
        found = {}
        for path in outputs.artifacts(self._folder):
            inner = os.path.relpath(path, root)
            shown = inner if inner in uploaded or inner.startswith(_LOGS) else _OUTPUTS + inner
            found[shown] = path
        return dict(sorted({**found, **self.logs()}.items()))

    def logs(self) -> dict[str, str]:
        """Return the paths of the ranks' logs by name, in the order of the ranks."""
        root = self._folder.file("user_logs")
        names = os.listdir(root) if os.path.isdir(root) else []
        ordered = sorted(names, key=lambda name: (len(name), name))
        return {f"user_logs/{name}": os.path.join(root, name) for name in ordered}

    def log_urls(self) -> dict[str, str]:
        """Return the addresses of all logs on Farandole's dashboard by name.

        They contain no token and no path of this host, because notebooks keep them in their output.
        """
        further = {name: path for name, path in self.paths().items() if name.startswith(_LOGS)}
        paths = {**self.logs(), **further}
        run_id = self._folder.run_id
        return {
            name: file_url(run_id, os.path.relpath(path, self._folder.path))
            for name, path in paths.items()
        }

    def path(self, name: str) -> str:
        """Return the path of a file. Raises UserErrorException if there is none."""
        known = self.paths()
        found = known.get(os.path.normpath(name))
        if found is None:
            raise UserErrorException(
                f"File with path {name} was not found,\navailable files include:"
                f" {','.join(list(known)[:50])}."
            )
        return found

    def upload(self, name: str, path: str) -> None:
        """Copy the file ``path`` to the run under a name.

        Raises UserErrorException if the name leads out of the run, or the file does not exist.
        """
        inner = self._inner(name)
        try:
            size = files.add(self._folder, path, inner)
        except (ValueError, OSError) as error:
            raise UserErrorException(f"{path!r} cannot be uploaded: {error}") from error
        self._record(name, inner, size)

    def write(self, name: str, data: bytes) -> None:
        """Write bytes to a new file of the run. Raises as ``save``."""
        self.save(name, lambda path: Path(path).write_bytes(data))

    def save(self, name: str, save: files.Save) -> None:
        """Write a new file of the run: ``save`` gets a path and writes the file there.

        Raises UserErrorException if the name leads out of the run.
        """
        inner = self._inner(name)
        target = os.path.join(self._folder.folder("outputs"), inner)
        files.write(target, save)
        self._record(name, inner, os.path.getsize(target))

    def _inner(self, name: str) -> str:
        """Return the name relative to the run's outputs.

        Raises UserErrorException if it leads out of the run.
        """
        try:
            found = files.inside(name)
        except ValueError as error:
            raise UserErrorException(str(error)) from error
        return found[len(_OUTPUTS) :] if found.startswith(_OUTPUTS) else found

    def _record(self, name: str, inner: str, size: int) -> None:
        as_upload = {} if os.path.normpath(name).startswith(_OUTPUTS) else {"uploaded": True}
        tracker_of(self._folder).record(ARTIFACT, name=inner, bytes=size, **as_upload)

    def _uploaded(self) -> set[str]:
        """Return the names of the files that were uploaded under names outside of ``outputs``."""
        from farandole.jobs import metrics

        return {
            record["name"]
            for rank in metrics.ranks(self._folder)
            for record in metrics.logged(self._folder, ARTIFACT, rank)
            if record.get("uploaded")
        }
