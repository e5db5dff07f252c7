"""Errors of datasets."""

from __future__ import annotations

from azureml.exceptions import UserErrorException


class DatasetValidationError(UserErrorException):
    """A dataset's definition is invalid, or its sources do not exist."""


class DatasetExecutionError(UserErrorException):
    """A dataset's files cannot be read or written."""
