"""``DataPath``: a path in a datastore."""

from __future__ import annotations

from typing import Any


class DataPath:
    """A path in a datastore, for the definition of a dataset."""

    def __init__(
        self, datastore: Any = None, path_on_datastore: str | None = None, name: str | None = None
    ) -> None:
        self.datastore = datastore
        self.path_on_datastore = path_on_datastore or ""
        self.name = name

    @property
    def datastore_name(self) -> str:
        return str(self.datastore.name)


class DataPathComputeBinding:
    """The access of a run to a data path; ``mode``: ``mount``, ``download`` or ``upload``."""

    def __init__(
        self, mode: str = "mount", path_on_compute: str | None = None, overwrite: bool = False
    ) -> None:
        self.mode = mode
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite
