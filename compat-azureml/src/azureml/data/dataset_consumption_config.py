"""``DatasetConsumptionConfig``: a dataset as the input of a run."""

from __future__ import annotations

import secrets
from typing import Any

from azureml._farandole.arguments import RunInput
from azureml._farandole.texts import notice
from azureml.exceptions import UserErrorException

MODES = ("direct", "mount", "download")


class DatasetConsumptionConfig:
    """A dataset as the input of a run.

    Among the arguments of a script, it becomes a path (``mount`` and ``download``) or the id of the
    dataset (``direct``). The environment variable ``name`` has the same text.
    """

    def __init__(
        self,
        name: str | None,
        dataset: Any,
        mode: str = "direct",
        path_on_compute: str | None = None,
    ) -> None:
        """Use a dataset as the input of a run.

        Arguments:
            name: The name of the input; by default ``input__`` and eight hexadecimal digits.
            dataset: The dataset.
            mode: ``direct``, ``mount`` or ``download``.
            path_on_compute: Not used; the run prints one line.

        Raises UserErrorException for an invalid name or mode.
        """
        if mode not in MODES:
            raise UserErrorException(f"mode={mode!r} of an input must be one of {', '.join(MODES)}")
        name = name or f"input__{secrets.token_hex(4)}"
        if not name.isidentifier():
            raise UserErrorException(
                f"the name {name!r} of an input must consist of letters, digits and '_', and not"
                " begin with a digit"
            )
        self.name = name
        self.dataset = dataset
        self.mode = mode
        self.path_on_compute = path_on_compute

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return this input, mounted: a path that all ranks of a host read."""
        return self._with_mode("mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """Return this input as a copy that belongs to the run."""
        return self._with_mode("download", path_on_compute)

    def as_direct(self) -> DatasetConsumptionConfig:
        """Return this input as the dataset itself."""
        return self._with_mode("direct", None)

    def as_hdfs(self) -> DatasetConsumptionConfig:
        """Raise UserErrorException: there is no HDFS mode."""
        raise UserErrorException("as_hdfs() is not supported; use as_mount() or as_download()")

    def _with_mode(self, mode: str, path_on_compute: str | None) -> DatasetConsumptionConfig:
        if mode != "direct" and not hasattr(self.dataset, "as_mount"):
            raise UserErrorException(
                f"a {type(self.dataset).__name__} has no files to {mode}; pass it as it is, or"
                " convert it with to_csv_files() first"
            )
        return DatasetConsumptionConfig(self.name, self.dataset, mode, path_on_compute)

    def _run_input(self) -> RunInput:
        """Return the input for a run."""
        if self.path_on_compute:
            notice(
                f"path_on_compute={self.path_on_compute!r} of the input {self.name} has no effect;"
                " the script finds the path in its arguments"
            )
        found: RunInput = self.dataset._as_run_input(self.name, self.mode)
        return found._replace(path_on_compute=self.path_on_compute)

    def __str__(self) -> str:
        return f"DatasetConsumptionConfig:{self.name}"

    __repr__ = __str__
