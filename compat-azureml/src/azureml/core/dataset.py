"""``Dataset``: the constructors and the registered datasets of a workspace."""

from __future__ import annotations

from typing import Any

from azureml.data import _catalogue
from azureml.data._files import DatasetDefinition
from azureml.data.abstract_dataset import AbstractDataset
from azureml.data.dataset_factory import FileDatasetFactory, TabularDatasetFactory
from azureml.data.file_dataset import FileDataset
from azureml.data.tabular_dataset import TabularDataset
from azureml.exceptions import UserErrorException

__all__ = ["Dataset", "FileDataset", "TabularDataset"]


class Dataset:
    """Datasets: ``Dataset.File.from_files(...)``, ``Dataset.get_by_name(workspace, name)``."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(workspace: Any, name: str, version: int | str = "latest") -> AbstractDataset:
        """Return a registered dataset; ``version``: a number or ``latest``.

        Raises UserErrorException if there is none with this name and version.
        """
        entry = _catalogue.named(workspace, name, version)
        return _made(DatasetDefinition.from_json(entry["definition"]), entry)

    @staticmethod
    def get_by_id(workspace: Any, id: str, **_: Any) -> AbstractDataset:
        """Return a dataset that was registered or used by a run.

        It has the name and version of a registration only if this is the newest of its name. Raises
        UserErrorException if there is none with this id.
        """
        definition = _catalogue.by_id(id)
        for name in _catalogue.names(workspace):
            entry = _catalogue.named(workspace, name)
            if entry["id"] == id:
                return _made(definition, entry)
        return _made(definition, {"id": id})

    @staticmethod
    def get(workspace: Any, name: str | None = None, id: str | None = None) -> AbstractDataset:
        """Return a dataset by its name or id.

        Raises UserErrorException if there is none, or without a name and an id.
        """
        if name:
            return Dataset.get_by_name(workspace, name)
        if id:
            return Dataset.get_by_id(workspace, id)
        raise UserErrorException("Dataset.get needs name= or id=")

    @staticmethod
    def get_all(workspace: Any) -> dict[str, AbstractDataset]:
        """Return the newest version of each registered dataset by name."""
        return {name: Dataset.get_by_name(workspace, name) for name in _catalogue.names(workspace)}


def _made(definition: DatasetDefinition, entry: dict[str, Any]) -> AbstractDataset:
    kind = FileDataset if definition.kind == "file" else TabularDataset
    return kind(definition, entry)
