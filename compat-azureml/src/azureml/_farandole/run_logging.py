"""The methods ``log*`` of runs, inside and outside of a job."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from azureml.exceptions import UserErrorException


class RunLogging(ABC):
    """The metrics that a program records in its run.

    All ranks may record: each keeps its own values. A name that is logged several times becomes a
    list.
    """

    @abstractmethod
    def _record(self, kind: str, name: str, value: Any, step: int | None = None) -> None:
        """Record a metric of a ``kind``: scalar, list, row, table, image, or a chart in JSON."""

    def log(
        self, name: str, value: Any, description: str | None = "", step: int | None = None
    ) -> None:
        """Record a number or a string; ``step``: by default the number of earlier values."""
        self._record("scalar", name, value, step)

    def log_list(self, name: str, value: Sequence[Any], description: str = "") -> None:
        """Record a list of numbers or texts."""
        self._record("list", name, list(value))

    def log_row(self, name: str, description: str | None = None, **kwargs: Any) -> None:
        """Add a row to the table ``name``, with a value for each column, as ``column=value``.

        Raises UserErrorException without a column.
        """
        if not kwargs:
            raise UserErrorException(f"log_row({name!r}) needs at least one column, as name=value")
        self._record("row", name, kwargs)

    def log_table(self, name: str, value: Mapping[str, Any], description: str = "") -> None:
        """Record a table: a dict with a value or a list of values for each column.

        Raises UserErrorException for anything else, and for an empty dict.
        """
        if not isinstance(value, Mapping) or not value:
            raise UserErrorException(f"log_table({name!r}) takes a dict of columns, not {value!r}")
        self._record("table", name, dict(value))

    def log_image(
        self, name: str, path: str | None = None, plot: Any = None, description: str = ""
    ) -> None:
        """Keep an image: the file ``path``, or ``plot``, a figure or module of Matplotlib.

        Raises UserErrorException unless exactly one of the two is given.
        """
        if (path is None) == (plot is None):
            raise UserErrorException(f"log_image({name!r}) needs either path= or plot=")
        self._record("image", name, path if path is not None else plot)

    def log_confusion_matrix(self, name: str, value: Any, description: str = "") -> None:
        """Keep a confusion matrix, given as JSON text or a dict.

        Raises UserErrorException if it is not a JSON object.
        """
        self._record("confusion_matrix", name, _checked(name, value))

    def log_accuracy_table(self, name: str, value: Any, description: str = "") -> None:
        """Keep an accuracy table, as ``log_confusion_matrix``."""
        self._record("accuracy_table", name, _checked(name, value))

    def log_residuals(self, name: str, value: Any, description: str = "") -> None:
        """Keep a histogram of residuals, as ``log_confusion_matrix``."""
        self._record("residual", name, _checked(name, value))

    def log_predictions(self, name: str, value: Any, description: str = "") -> None:
        """Keep binned predictions, as ``log_confusion_matrix``."""
        self._record("predictions", name, _checked(name, value))


def _checked(name: str, value: Any) -> dict[str, Any]:
    """Return a chart's data. Raises UserErrorException unless it is a JSON object."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UserErrorException(f"the value of {name!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserErrorException(f"the value of {name!r} must be a JSON object, not {found!r}")
    return found
