"""``FileDataset``: files of any kind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from types import TracebackType
from typing import Any

from azureml.data import _files
from azureml.data.abstract_dataset import AbstractDataset
from azureml.data.dataset_consumption_config import DatasetConsumptionConfig
from azureml.exceptions import UserErrorException


class FileDataset(AbstractDataset):
    """Files from paths, URLs and datastores."""

    def to_path(self) -> list[str]:
        """Return the path of each file, relative to the root of the dataset, as ``/data.zip``.

        Raises DatasetExecutionError if a source has no files.
        """
        return [f"/{file.name}" for file in _files.files(self._definition)]

    def download(
        self,
        target_path: str | None = None,
        overwrite: bool = False,
        ignore_not_found: bool = False,
    ) -> list[str]:
        """Copy the files into a folder and return the paths of the copies.

        ``target_path``: by default a new temporary folder. Raises DatasetExecutionError if a copy
        exists and ``overwrite`` is False, or if a file cannot be read.
        """
        into = os.path.abspath(target_path) if target_path else tempfile.mkdtemp(prefix="dataset-")
        return _files.download(self._definition, into, overwrite=overwrite)

    def mount(self, mount_point: str | None = None, **_: Any) -> MountContext:
        """Return a context in which the files are at ``mount_point``.

        ``mount_point``: by default a new temporary folder.
        """
        return MountContext(self, mount_point)

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as an input of a run: a path that all ranks of a host read.

        The path is a file for a dataset made of one file, else a folder.
        """
        return DatasetConsumptionConfig(None, self, "mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return the dataset as an input of a run: a copy that belongs to the run."""
        return DatasetConsumptionConfig(None, self, "download", path_on_compute)

    def as_hdfs(self) -> DatasetConsumptionConfig:
        """Raise UserErrorException: there is no HDFS mode."""
        return DatasetConsumptionConfig(None, self).as_hdfs()

    def file_metadata(self, col: str) -> list[Any]:
        """Return a property of each file. Raises UserErrorException unless ``col`` is ``Size``."""
        if col.lower() != "size":
            raise UserErrorException(f"file_metadata({col!r}) is not supported, only 'Size'")
        found = _files.files(self._definition)
        return [file.system.info(file.path).get("size") for file in found]


class MountContext:
    """The files of a dataset at a path of this host, between ``start`` and ``stop``.

    The path holds links to the files on this host, or to copies that are fetched once per version.
    """

    def __init__(self, dataset: FileDataset, mount_point: str | None = None) -> None:
        self._dataset = dataset
        self._own = mount_point is None
        self._folder = os.path.abspath(mount_point or tempfile.mkdtemp(prefix="mount-"))
        self._single = _files.is_single_file(dataset._definition)
        self._links: list[str] = []

    @property
    def mount_point(self) -> str:
        """The path of the file for a dataset made of one file, else the path of the folder."""
        if self._single:
            (file,) = _files.files(self._dataset._definition)
            return os.path.join(self._folder, file.name)
        return self._folder

    def start(self) -> None:
        """Create the links. Raises UserErrorException if the mount point is not empty."""
        if self._links:
            return
        if os.path.isdir(self._folder) and os.listdir(self._folder):
            raise UserErrorException(f"the mount point {self._folder} is not empty")
        source = _files.source_of(self._dataset._definition)
        here = _files.plain_path(source)
        if here is None or not os.path.exists(here):
            here = _files.collected(self._dataset._definition)
            entries = [os.path.join(here, name) for name in sorted(os.listdir(here))]
        elif os.path.isdir(here):
            entries = [os.path.join(here, name) for name in sorted(os.listdir(here))]
        else:
            entries = [here]
        os.makedirs(self._folder, exist_ok=True)
        for entry in entries:
            link = os.path.join(self._folder, os.path.basename(entry))
            os.symlink(entry, link)
            self._links.append(link)

    def stop(self) -> None:
        """Remove the links."""
        for link in self._links:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
        self._links = []
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> MountContext:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
