"""``DataReference``: a path in a datastore that a run reads or writes."""

from __future__ import annotations

import os
from typing import Any

from azureml._farandole.arguments import RunInput
from azureml.data import _files
from azureml.exceptions import UserErrorException

_VARIABLE = "AZUREML_DATAREFERENCE_"


class DataReference:
    """A path in a datastore, passed to a script as a path on its host.

    The path is also in the environment variable ``AZUREML_DATAREFERENCE_<name>``.
    """

    def __init__(
        self,
        datastore: Any,
        data_reference_name: str | None = None,
        path_on_datastore: str | None = None,
        mode: str = "mount",
        path_on_compute: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Refer to a path in a datastore.

        Arguments:
            datastore: The ``Datastore``.
            data_reference_name: The name in the variable; by default the datastore's name.
            path_on_datastore: The path in the datastore; by default all of it.
            mode: ``mount`` (read and write in place) or ``download`` (a copy for the run).
            path_on_compute: Not used.
            overwrite: Not used.

        Raises UserErrorException for another mode.
        """
        if mode not in ("mount", "download"):
            raise UserErrorException(
                f"a DataReference with mode={mode!r} is not supported; write to outputs/, or"
                " pass an OutputFileDatasetConfig"
            )
        self.datastore = datastore
        self.data_reference_name = data_reference_name or datastore.name
        self.path_on_datastore = path_on_datastore or ""
        self.mode = mode
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite

    @property
    def variable(self) -> str:
        """The name of the environment variable with the path."""
        return _VARIABLE + "".join(
            letter if letter.isalnum() else "_" for letter in self.data_reference_name
        )

    def path(
        self, path: str | None = None, data_reference_name: str | None = None
    ) -> DataReference:
        """Return a reference to a path below this one."""
        below = "/".join(part for part in (self.path_on_datastore, path or "") if part)
        return DataReference(
            self.datastore, data_reference_name or self.data_reference_name, below, self.mode
        )

    def as_mount(self) -> DataReference:
        return self._with_mode("mount", None, False)

    def as_download(
        self, path_on_compute: str | None = None, overwrite: bool = False
    ) -> DataReference:
        return self._with_mode("download", path_on_compute, overwrite)

    def as_upload(
        self, path_on_compute: str | None = None, overwrite: bool = False
    ) -> DataReference:
        """Raise UserErrorException: use ``OutputFileDatasetConfig`` instead."""
        return self._with_mode("upload", path_on_compute, overwrite)

    def to_config(self) -> DataReference:
        """Return this reference, as a value of ``RunConfiguration.data_references``."""
        return self

    def _with_mode(self, mode: str, path_on_compute: str | None, overwrite: bool) -> DataReference:
        return DataReference(
            self.datastore,
            self.data_reference_name,
            self.path_on_datastore,
            mode,
            path_on_compute,
            overwrite,
        )

    def _run_input(self) -> RunInput:
        """Return the path as an input of a run; create the folder if the datastore is local."""
        source = self.datastore._source(self.path_on_datastore)
        here = _files.plain_path(source)
        if here is not None and not os.path.exists(here):
            os.makedirs(here)
        return RunInput(self.variable, here or source, self.mode)

    def __str__(self) -> str:
        return f"${self.variable}"

    __repr__ = __str__
