"""Changes of a run after its submission: names, tags and properties."""

from __future__ import annotations

from typing import Any

from farandole.job.runs.folder import RunFolder, read_json, write_json

_FILE, _TAGS = "azureml-changes.json", "tags.json"


class RunChanges:
    """The changeable facts of a run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def get(self, name: str, default: Any = None) -> Any:
        """Return a fact."""
        return self._data().get(name, default)

    def set(self, **values: Any) -> None:
        """Change facts."""
        write_json(self._folder.file(_FILE), {**self._data(), **values})

    def tags(self) -> dict[str, str]:
        """Return the tags of the submission with later changes."""
        changed = read_json(self._folder.file(_TAGS)) or {}
        removed = self.get("removed_tags", [])
        found = {**self._folder.spec().tags, **changed}
        return {name: text for name, text in found.items() if name not in removed}

    def set_tags(self, tags: dict[str, str]) -> None:
        """Set tags, which Farandole's commands show too."""
        changed = read_json(self._folder.file(_TAGS)) or {}
        write_json(self._folder.file(_TAGS), {**changed, **tags})
        removed = self.get("removed_tags", [])
        if removed:
            self.set(removed_tags=[name for name in removed if name not in tags])

    def remove_tags(self, names: list[str]) -> None:
        """Remove tags."""
        changed = read_json(self._folder.file(_TAGS)) or {}
        kept = {name: text for name, text in changed.items() if name not in names}
        write_json(self._folder.file(_TAGS), kept)
        given = [name for name in names if name in self._folder.spec().tags]
        self.set(removed_tags=sorted({*self.get("removed_tags", []), *given}))

    def _data(self) -> dict[str, Any]:
        return read_json(self._folder.file(_FILE)) or {}
