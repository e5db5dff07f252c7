"""The exceptions of the SDK, all derived from ``AzureMLException``."""

from __future__ import annotations

__all__ = [
    "ActivityFailedException",
    "AuthenticationException",
    "AzureMLException",
    "ComputeTargetException",
    "DatasetTimestampMissingError",
    "DiscoveryUrlNotFoundException",
    "ExperimentExecutionException",
    "HyperDriveConfigException",
    "HyperDriveNotImplementedException",
    "HyperDriveRehydrateException",
    "HyperDriveScheduleRequestException",
    "ImageException",
    "ModelNotFoundException",
    "ModelPathNotFoundException",
    "OptionalDependencyMissingException",
    "ProjectSystemException",
    "ResourceNotFoundError",
    "RunConfigurationException",
    "RunEnvironmentException",
    "ScenarioNotSupportedException",
    "ServiceException",
    "SnapshotException",
    "TrainingException",
    "UserErrorException",
    "WebserviceException",
    "WorkspaceException",
]


class AzureMLException(Exception):
    """An error of the SDK.

    Arguments:
        exception_message: The text, also in the attribute ``message``.
        inner_exception: The exception that caused this one.
    """

    def __init__(
        self, exception_message: str = "", inner_exception: BaseException | None = None, **_: object
    ) -> None:
        super().__init__(exception_message)
        self.message = exception_message
        self.inner_exception = inner_exception

    def __str__(self) -> str:
        return self.message


class UserErrorException(AzureMLException):
    """A mistake in a call."""


class ServiceException(AzureMLException):
    """A failure of the folder of all runs, which takes the place of Azure's service."""


class AuthenticationException(AzureMLException):
    """Missing or wrong credentials."""


class ComputeTargetException(AzureMLException):
    """A compute target that does not exist or cannot be created."""


class WorkspaceException(AzureMLException):
    """A workspace that does not exist or cannot be created."""


class ProjectSystemException(WorkspaceException):
    """A workspace without the requested object."""


class TrainingException(AzureMLException):
    """A failure of training."""


class ExperimentExecutionException(TrainingException):
    """A run that cannot be submitted or followed."""


class RunConfigurationException(TrainingException):
    """An invalid configuration of a run."""


class SnapshotException(TrainingException):
    """A source folder that cannot become a snapshot."""


class ActivityFailedException(TrainingException):
    """A run that failed; ``error_details`` describes the failure."""

    def __init__(self, error_details: str = "", **kwargs: object) -> None:
        super().__init__(f"Activity Failed:\n{error_details}")
        self.error_details = error_details


class RunEnvironmentException(AzureMLException):
    """A process that belongs to no run."""

    def __init__(self, exception_message: str = "", **kwargs: object) -> None:
        super().__init__(
            exception_message
            or "Could not load a submitted run, if outside of an execution context,"
            " use experiment.start_logging to initialize an azureml.core.Run."
        )


class ScenarioNotSupportedException(AzureMLException):
    """A call that has no meaning for this object."""


class OptionalDependencyMissingException(AzureMLException):
    """A package that must be installed for this call."""


class DiscoveryUrlNotFoundException(AzureMLException):
    """A service without an address."""


class ResourceNotFoundError(AzureMLException):
    """An object that does not exist."""


class ImageException(AzureMLException):
    """A failure of an image."""


class WebserviceException(AzureMLException):
    """A failure of a web service."""


class ModelNotFoundException(AzureMLException):
    """A model that is not registered."""


class ModelPathNotFoundException(AzureMLException):
    """Files of a model that do not exist."""


class DatasetTimestampMissingError(AzureMLException):
    """A dataset without a column of times."""


class HyperDriveConfigException(AzureMLException):
    """An invalid configuration of a sweep."""


class HyperDriveScheduleRequestException(AzureMLException):
    """A sweep that cannot be started."""


class HyperDriveRehydrateException(AzureMLException):
    """A sweep that cannot be read."""


class HyperDriveNotImplementedException(AzureMLException):
    """A feature of sweeps that does not exist."""
