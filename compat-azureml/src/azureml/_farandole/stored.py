"""Changes of a run after its submission: names, tags and properties."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import Any

from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import RunFolder, read_json, write_json

_FILE, _TAGS, _LOCK = "azureml-changes.json", "tags.json", "azureml.lock"


class RunChanges:
    """The changeable facts of a run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def get(self, name: str, default: Any = None) -> Any:
        """Return a fact by its name, ``default`` if it has not been set."""
        return self._data().get(name, default)

    def set(self, **values: Any) -> None:
        """Change facts."""
        with self._locked():
            self._write(values)

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Add properties. Raises UserErrorException if one of them exists with another value."""
        with self._locked():
            before = self.get("properties", {})
            for key, text in properties.items():
                if before.get(key, text) != text:
                    raise UserErrorException(
                        f"the property {key!r} is {before[key]!r} and cannot be changed to"
                        f" {text!r}; use a tag"
                    )
            self._write({"properties": {**before, **properties}})

    def tags(self) -> dict[str, str | None]:
        """Return the tags of the submission with later changes; None for a tag without a value."""
        changed = read_json(self._folder.file(_TAGS)) or {}
        removed, bare = self.get("removed_tags", []), self.get("bare_tags", [])
        found = {**self._folder.spec().tags, **changed}
        return {
            name: None if name in bare else text
            for name, text in found.items()
            if name not in removed
        }

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags, which Farandole's commands show too; None for a tag without a value."""
        with self._locked():
            changed = read_json(self._folder.file(_TAGS)) or {}
            texts = {name: "" if value is None else str(value) for name, value in tags.items()}
            write_json(self._folder.file(_TAGS), {**changed, **texts})
            bare = {name for name in self.get("bare_tags", []) if name not in tags}
            bare |= {name for name, value in tags.items() if value is None}
            removed = [name for name in self.get("removed_tags", []) if name not in tags]
            self._write({"bare_tags": sorted(bare), "removed_tags": removed})

    def remove_tags(self, names: list[str]) -> None:
        """Remove tags."""
        with self._locked():
            changed = read_json(self._folder.file(_TAGS)) or {}
            kept = {name: text for name, text in changed.items() if name not in names}
            write_json(self._folder.file(_TAGS), kept)
            given = [name for name in names if name in self._folder.spec().tags]
            self._write({"removed_tags": sorted({*self.get("removed_tags", []), *given})})

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this host from changing the facts: all ranks may set tags."""
        descriptor = os.open(
            self._folder.file(_LOCK), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, values: Mapping[str, Any]) -> None:
        """Write facts, if one of them has changed."""
        if any(value != self.get(name, []) for name, value in values.items()):
            write_json(self._folder.file(_FILE), {**self._data(), **values})

    def _data(self) -> dict[str, Any]:
        return read_json(self._folder.file(_FILE)) or {}
