"""``AbstractDataset``: the identity, the registration and the selections of all datasets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

from azureml._farandole.arguments import RunInput
from azureml.data import _catalogue, _files
from azureml.data._files import DatasetDefinition
from azureml.data.dataset_consumption_config import DatasetConsumptionConfig

D = TypeVar("D", bound="AbstractDataset")


class AbstractDataset:
    """A dataset: a definition, and after its registration a name and a version."""

    def __init__(
        self, definition: DatasetDefinition, entry: Mapping[str, Any] | None = None
    ) -> None:
        """``entry``: the registered name, version, id, description and tags."""
        self._definition = definition
        self._entry = dict(entry or {})
        self._id = self._entry.get("id") or str(uuid.uuid4())

    @property
    def id(self) -> str:
        return str(self._id)

    @property
    def name(self) -> str | None:
        """The name of the registration; None for a dataset that is not registered."""
        return self._entry.get("name")

    @property
    def version(self) -> int | None:
        return self._entry.get("version")

    @property
    def description(self) -> str | None:
        return self._entry.get("description")

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._entry.get("tags") or {})

    def add_tags(self, tags: Mapping[str, str] | None = None) -> dict[str, str]:
        """Add tags to the registered dataset and return all of its tags.

        Raises UserErrorException before the registration.
        """
        self._entry["tags"] = _catalogue.add_tags(self._entry, tags or {})
        return self.tags

    def remove_tags(self, tags: list[str] | None = None) -> dict[str, str]:
        """Remove tags of the registered dataset and return the remaining ones.

        Raises UserErrorException before the registration.
        """
        self._entry["tags"] = _catalogue.remove_tags(self._entry, tags or [])
        return self.tags

    def register(
        self: D,
        workspace: Any,
        name: str,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        create_new_version: bool = False,
    ) -> D:
        """Register the dataset under a name and return the registered dataset.

        Raises UserErrorException if another dataset has the name and ``create_new_version`` is
        False.
        """
        entry = _catalogue.register(
            workspace,
            name,
            _catalogue.Registration(self.id, self._definition, description, dict(tags or {})),
            create_new_version=create_new_version,
        )
        return type(self)(self._definition, entry)

    def unregister_all_versions(self) -> None:
        """Remove all versions of the registered dataset. Its files are kept.

        Raises UserErrorException before the registration.
        """
        _catalogue.unregister(self._entry)
        self._entry = {}

    def as_named_input(self, name: str) -> DatasetConsumptionConfig:
        """Return the dataset as the input ``name`` of a run.

        Raises UserErrorException if the name is not a Python identifier.
        """
        return DatasetConsumptionConfig(name, self)

    def take(self: D, count: int) -> D:
        """Return the first ``count`` files or rows."""
        return self._selected("take", count)

    def skip(self: D, count: int) -> D:
        """Return all but the first ``count`` files or rows."""
        return self._selected("skip", count)

    def random_split(self: D, percentage: float, seed: int | None = None) -> tuple[D, D]:
        """Return two datasets: a random part with the share ``percentage`` (0 to 1), and the rest.

        The same ``seed`` gives the same parts; by default it is random.
        """
        seed = uuid.uuid4().int % 2**32 if seed is None else seed
        return (
            self._selected("split", percentage, seed, 0),
            self._selected("split", percentage, seed, 1),
        )

    def _run_input(self) -> RunInput:
        """Return the dataset as an input of a run that gets its id."""
        return self.as_named_input(f"input__{self.id[:8]}")._run_input()

    def _as_run_input(self, name: str, mode: str) -> RunInput:
        _catalogue.save(self.id, self._definition)
        facts = {"id": self.id, "name": self.name, "version": self.version}
        source = "" if mode == "direct" else self._run_input_source()
        return RunInput(name, source, mode, facts)

    def _run_input_source(self) -> str:
        return _files.source_of(self._definition)

    def _selected(self: D, *step: Any) -> D:
        return type(self)(self._definition.followed_by(*step))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, name={self.name!r}, version={self.version})"
