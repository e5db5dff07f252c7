"""``OutputFileDatasetConfig``: a folder of a datastore that a run writes."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from azureml._farandole.arguments import RunOutput
from azureml._farandole.texts import notice
from azureml.data import _catalogue
from azureml.data._files import DatasetDefinition
from azureml.data.dataset_consumption_config import DatasetConsumptionConfig
from azureml.data.dataset_factory import target_of
from azureml.data.file_dataset import FileDataset
from azureml.exceptions import UserErrorException
from farandole.job.runs.home import RunsHome

_DESTINATION = "dataset/{run-id}/{output-name}"


class OutputFileDatasetConfig:
    """A folder of a datastore that a run writes.

    Among the arguments of a script, it becomes the path of the folder. ``{run-id}`` and
    ``{output-name}`` in the destination are replaced by the run's id and the output's name.
    """

    def __init__(
        self, name: str | None = None, destination: Any = None, source: str | None = None, **_: Any
    ) -> None:
        """Define an output of a run.

        Arguments:
            name: The name of the output; by default ``output_`` and eight hexadecimal digits.
            destination: ``(datastore, path)``; by default a folder in ``FARANDOLE_HOME``.
            source: Not supported.

        Raises UserErrorException for ``source`` and for an invalid name.
        """
        if source:
            raise UserErrorException(
                f"OutputFileDatasetConfig(source={source!r}) is not supported; pass the config"
                " as an argument, and let the script write to that path"
            )
        self.name = name or f"output_{secrets.token_hex(4)}"
        if not self.name.isidentifier():
            raise UserErrorException(
                f"the name {self.name!r} of an output must consist of letters, digits and '_', and"
                " not begin with a digit"
            )
        self.destination = destination
        self.mode = "mount"
        self._registration: dict[str, Any] | None = None
        self._path = ""

    def as_mount(self, disable_metadata_cache: bool = False) -> OutputFileDatasetConfig:
        """Return this output: the script writes directly to the datastore."""
        return self._with_mode("mount")

    def as_upload(
        self, overwrite: bool = False, source_globs: str | list[str] | None = None
    ) -> OutputFileDatasetConfig:
        """Return this output. The script writes directly to the datastore, as with ``as_mount``."""
        if source_globs:
            notice(f"source_globs={source_globs!r} has no effect: all files of an output are kept")
        return self._with_mode("upload")

    def register_on_complete(
        self, name: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> OutputFileDatasetConfig:
        """Return this output, which becomes a registered dataset once its run has completed."""
        made = self._with_mode(self.mode)
        made._registration = {"name": name, "description": description, "tags": dict(tags or {})}
        return made

    def as_input(self, name: str | None = None) -> DatasetConsumptionConfig:
        """Return the files as an input of a later run.

        Raises UserErrorException before the run that writes the output is submitted.
        """
        return DatasetConsumptionConfig(name, self.dataset(), "mount")

    def dataset(self) -> FileDataset:
        """Return the files of the output as a dataset.

        Raises UserErrorException before the run that writes the output is submitted.
        """
        if not self._path:
            raise UserErrorException(
                f"the output {self.name!r} has no files yet; submit the run that writes it first"
            )
        return FileDataset(DatasetDefinition("file", (self._path,)))

    def _with_mode(self, mode: str) -> OutputFileDatasetConfig:
        made = OutputFileDatasetConfig(self.name, self.destination)
        made.mode = mode
        made._registration = self._registration
        return made

    def _run_output(self, run_id: str) -> RunOutput:
        """Return the output for a run and create its folder.

        Raises UserErrorException if the datastore is not on this host.
        """
        store, below = (None, "") if self.destination is None else target_of(self.destination)
        below = (below or _DESTINATION).replace("{run-id}", run_id)
        below = below.replace("{output-name}", self.name)
        if store is None:
            self._path = os.path.join(RunsHome().folder(os.path.join("azureml", ".shared")), below)
        else:
            self._path = store._local_folder(below)
        os.makedirs(self._path, exist_ok=True)
        identity = str(uuid.uuid4())
        definition = DatasetDefinition("file", (self._path,))
        _catalogue.save(identity, definition)
        if self._registration is not None:
            facts = {"id": identity, "definition": definition.to_json()}
            _catalogue.expect(run_id, self.name, {**self._registration, **facts})
        details = {
            "identifier": {"savedId": identity},
            "outputType": "RunOutput",
            "outputDetails": {"outputName": self.name},
        }
        return RunOutput(self.name, self._path, details)

    def __str__(self) -> str:
        return f"OutputFileDatasetConfig:{self.name}"

    __repr__ = __str__
