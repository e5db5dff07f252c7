"""The run of a program started outside of a job: it prints metrics and records nothing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from azureml._farandole.run_logging import RunLogging
from azureml._farandole.texts import say


class _OfflineRun(RunLogging):
    """A run outside of a job. It prints metrics and files, and keeps nothing."""

    def __init__(self, parent: _OfflineRun | None = None, run_id: str | None = None) -> None:
        self._run_id = run_id or f"OfflineRun_{uuid.uuid4()}"
        self._tags: dict[str, str] = {}
        self._properties: dict[str, str] = {}
        self._status = "Running"
        self._children: list[_OfflineRun] = []
        self.parent = parent
        self.input_datasets: dict[str, Any] = {}
        self.output_datasets: dict[str, Any] = {}

    @property
    def id(self) -> str:
        return self._run_id

    @property
    def status(self) -> str:
        return self._status

    def get_status(self) -> str:
        """Return ``Running``, or the end that the program chose."""
        return self._status

    def _record(self, kind: str, name: str, value: Any, step: int | None = None) -> None:
        shown = json.dumps(value) if isinstance(value, dict) and kind not in _PLAIN else value
        say(f"Attempted to log {kind} metric {name}:\n{shown}")

    # --- files

    def upload_file(self, name: str, path_or_stream: Any, **kwargs: Any) -> None:
        """Print the name and the path of the file."""
        say(f"Attempted to track file {name} at {path_or_stream}")

    def upload_files(self, names: list[str], paths: list[str], **kwargs: Any) -> None:
        """Print the names and the paths of the files."""
        for name, path in zip(names, paths, strict=True):
            self.upload_file(name, path)

    def upload_folder(self, name: str, path: str, **kwargs: Any) -> None:
        """Print the name and the path of the folder."""
        say(f"Attempted to track folder {name} at {path}")

    def get_file_names(self) -> list[str]:
        """Return an empty list."""
        return []

    def register_model(self, model_name: str, model_path: str | None = None, **_: Any) -> None:
        """Print the name of the model, and register nothing."""
        say(f"Attempted to register model {model_name} from {model_path}")

    # --- tags and properties

    def tag(self, key: str, value: str | None = None) -> None:
        """Set a tag of this object."""
        self._tags[key] = value or ""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of this object."""
        self._tags.update(tags)

    def get_tags(self) -> dict[str, str]:
        """Return the tags."""
        return dict(self._tags)

    def remove_tags(self, tags: list[str]) -> dict[str, str]:
        """Remove tags and return the remaining ones."""
        self._tags = {key: text for key, text in self._tags.items() if key not in tags}
        return self.get_tags()

    def add_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of this object."""
        self._properties.update(properties)

    def get_properties(self) -> dict[str, str]:
        """Return the properties."""
        return dict(self._properties)

    # --- children and states

    def child_run(
        self, name: str | None = None, run_id: str | None = None, **_: Any
    ) -> _OfflineRun:
        """Return a new child."""
        made = _OfflineRun(self, run_id)
        self._children.append(made)
        return made

    def create_children(
        self, count: int | None = None, tag_key: str | None = None, tag_values: Any = None
    ) -> list[_OfflineRun]:
        """Return new children, one for each tag or ``count`` of them."""
        return [self.child_run() for _ in (tag_values or range(count or 0))]

    def get_children(self, **kwargs: Any) -> Iterator[_OfflineRun]:
        """Yield the children."""
        return iter(self._children)

    def get_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def get_details(self) -> dict[str, Any]:
        """Return the id and the status."""
        return {"runId": self.id, "status": self._status}

    def start(self) -> None:
        """Set the status ``Running``."""
        self._status = "Running"

    def complete(self, **kwargs: Any) -> None:
        """Set the status ``Completed``."""
        self._status = "Completed"

    def fail(self, error_details: Any = None, error_code: Any = None, **kwargs: Any) -> None:
        """Set the status ``Failed``."""
        self._status = "Failed"

    def cancel(self) -> None:
        """Set the status ``Canceled``."""
        self._status = "Canceled"

    def flush(self, timeout_seconds: float = 300) -> None:
        """Accept the call: no values are kept."""

    def wait_for_completion(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the details immediately."""
        return self.get_details()

    def __enter__(self) -> _OfflineRun:
        say(f"[START] Run {self.id} context")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        say(f"[END] Run {self.id} context")
        if kind is None:
            self.complete()
        else:
            self.fail()

    def __repr__(self) -> str:
        return f"OfflineRun(Id: {self.id},\nStatus: {self._status})"


_PLAIN = ("scalar", "list", "row", "table")
