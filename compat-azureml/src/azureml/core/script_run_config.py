"""The configuration of a script's run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from azureml.core.environment import Environment
from azureml.core.runconfig import (
    MAX_SECONDS,
    DockerConfiguration,
    MpiConfiguration,
    PyTorchConfiguration,
    RunConfiguration,
    TensorflowConfiguration,
    target_name,
)
from azureml.exceptions import UserErrorException


class ScriptRunConfig:
    """A script or a command with its source, target, environment and number of ranks."""

    MAX_RUN_DURATION_SECONDS_DEFAULT = MAX_SECONDS

    def __init__(
        self,
        source_directory: str,
        script: str | None = None,
        arguments: list[Any] | None = None,
        run_config: RunConfiguration | None = None,
        compute_target: Any = None,
        environment: Environment | None = None,
        distributed_job_config: Any = None,
        resume_from: Any = None,
        max_run_duration_seconds: int | None = None,
        command: str | list[Any] | None = None,
        docker_runtime_config: DockerConfiguration | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure the run of a script or of a command.

        Arguments:
            source_directory: The folder of the program. The run uses a snapshot of this folder.
            script: A Python script in this folder.
            arguments: Texts, numbers, and datasets or outputs, which become paths.
            run_config: The base configuration; other arguments override its values in a copy.
            compute_target: A target or its name; None is ``local``.
            environment: The Python environment.
            distributed_job_config: ``MpiConfiguration``, ``PyTorchConfiguration`` or
                ``TensorflowConfiguration``; without it, one rank.
            max_run_duration_seconds: Seconds after which the run is stopped, by default 30 days.
            command: A shell command in place of a script, as text or as a list of words.
            resume_from: Not used; the submission prints one line.
            docker_runtime_config: A container, which runs do not use.

        Raises UserErrorException unless exactly one of script and command is given.
        """
        config = copy.copy(run_config) if run_config is not None else RunConfiguration()
        self.source_directory = source_directory
        self.run_config = config
        self.script = script or (config.script if command is None else None)
        self.arguments = [*(arguments or config.arguments)]
        self.command = command if command is not None else config.command
        self.resume_from = resume_from
        if bool(self.script) == bool(self.command):
            raise UserErrorException("a ScriptRunConfig needs either script= or command=")
        if compute_target is not None:
            config.target = target_name(compute_target)
        if environment is not None:
            config.environment = environment
        if docker_runtime_config is not None:
            config.docker = docker_runtime_config
        if distributed_job_config is not None:
            _apply(distributed_job_config, config)
        if max_run_duration_seconds is not None:
            config.max_run_duration_seconds = max_run_duration_seconds

    def _submit(self, experiment: Any, tags: Mapping[str, str], parent: str) -> Any:
        """Submit the run of this configuration and return it."""
        from azureml._farandole import submission

        return submission.submit(self, experiment, tags, parent)


def _apply(job: Any, config: RunConfiguration) -> None:
    """Put the configuration of a distributed job into the configuration of a run.

    Raises UserErrorException for an object of another class.
    """
    if isinstance(job, MpiConfiguration):
        config.communicator, config.mpi = "Mpi", job
        config.node_count = job.node_count
    elif isinstance(job, PyTorchConfiguration):
        config.framework, config.communicator = "PyTorch", job.communication_backend
        config.pytorch, config.node_count = job, job.node_count
    elif isinstance(job, TensorflowConfiguration):
        config.framework, config.communicator = "TensorFlow", "ParameterServer"
        config.tensorflow = job
        config.node_count = job.worker_count + job.parameter_server_count
    else:
        raise UserErrorException(
            "distributed_job_config must be an MpiConfiguration, PyTorchConfiguration or"
            f" TensorflowConfiguration, not {type(job).__name__}"
        )
