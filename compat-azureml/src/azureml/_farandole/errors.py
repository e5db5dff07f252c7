"""Farandole's errors as exceptions of the SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from azureml.exceptions import AzureMLException, UserErrorException
from farandole.errors import RunError, SettingsError


@contextlib.contextmanager
def raised_as(kind: type[AzureMLException] = UserErrorException) -> Iterator[None]:
    """Raise a SettingsError or RunError of the block as ``kind``, an exception of the SDK."""
    try:
        yield
    except (SettingsError, RunError) as error:
        raise kind(str(error), inner_exception=error) from error
