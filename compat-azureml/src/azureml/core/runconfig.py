"""The configuration of runs: processes, framework, environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from azureml.core.conda_dependencies import CondaDependencies as CondaDependencies
from azureml.core.environment import DEFAULT_CPU_IMAGE as DEFAULT_CPU_IMAGE
from azureml.core.environment import DEFAULT_GPU_IMAGE as DEFAULT_GPU_IMAGE
from azureml.core.environment import Environment
from azureml.exceptions import UserErrorException
from farandole.base.optional import require

LOCAL_RUNCONFIG_NAME = "local"
MAX_SECONDS = 2592000  # 30 days


class MpiConfiguration:
    """A job of MPI, or of Horovod: ``process_count_per_node`` times ``node_count`` ranks."""

    def __init__(self, process_count_per_node: int = 1, node_count: int = 1) -> None:
        self.process_count_per_node = process_count_per_node
        self.node_count = node_count


class PyTorchConfiguration:
    """A job of torch.distributed.

    ``process_count`` is the number of all ranks. None starts one process per node, which starts its
    node's ranks, as ``torchrun`` does.
    """

    def __init__(
        self,
        communication_backend: str = "Nccl",
        process_count: int | None = None,
        node_count: int = 1,
    ) -> None:
        self.communication_backend = communication_backend.lower()
        self.process_count = process_count
        self.node_count = node_count


class TensorflowConfiguration:
    """A job that reads ``TF_CONFIG``: workers, then parameter servers."""

    def __init__(self, worker_count: int = 1, parameter_server_count: int = 1) -> None:
        self.worker_count = worker_count
        self.parameter_server_count = parameter_server_count


class DockerConfiguration:
    """The container of a run. Runs are processes of their host and use none."""

    def __init__(
        self,
        use_docker: bool = False,
        shared_volumes: bool = True,
        arguments: list[str] | None = None,
        shm_size: str | None = "2g",
    ) -> None:
        self.use_docker = use_docker
        self.shared_volumes = shared_volumes
        self.arguments = arguments or []
        self.shm_size = shm_size


class HistoryConfiguration:
    """The parts of a run to keep; not used, because runs always keep their outputs and source."""

    def __init__(self) -> None:
        self.output_collection = True
        self.snapshot_project = True
        self.directories_to_watch = ["logs"]


class AmlComputeConfiguration:
    """The size of a cluster that is created for one run; not used."""

    def __init__(self) -> None:
        self.vm_size: str | None = None
        self.vm_priority: str | None = None
        self._cluster_max_node_count = 1


class DataReferenceConfiguration:
    """Data of a datastore that a run reads.

    ``mode``: ``mount``, ``download`` or ``upload``.
    """

    def __init__(
        self,
        datastore_name: str | None = None,
        mode: str = "mount",
        path_on_datastore: str | None = None,
        path_on_compute: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.datastore_name = datastore_name
        self.mode = mode
        self.path_on_datastore = path_on_datastore
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite


class RunConfiguration:
    """The configuration of a run, without its source.

    - ``target``: The name of the compute target, ``local`` by default.
    - ``framework``, ``communicator``: With ``node_count``, ``mpi``, ``pytorch`` and ``tensorflow``,
      they decide the number of ranks.
    - ``max_run_duration_seconds``: Seconds after which the run is stopped.
    - ``data``, ``output_data``, ``data_references``: Inputs and outputs that are not arguments.
    """

    def __init__(
        self,
        script: str | None = None,
        arguments: list[Any] | None = None,
        framework: str | None = None,
        communicator: str | None = None,
        conda_dependencies: CondaDependencies | None = None,
        command: str | list[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.script = script
        self.arguments = arguments or []
        self.command = command
        self._target = "local"
        self.framework = framework or "Python"
        self.communicator = communicator or "None"
        self.node_count = 1
        self.priority: int | None = None
        self.max_run_duration_seconds: int | None = MAX_SECONDS
        self.environment = Environment("default-environment")
        if conda_dependencies is not None:
            self.environment.python.conda_dependencies = conda_dependencies
        self.environment_variables: dict[str, str] = {}
        self.history = HistoryConfiguration()
        self.docker: DockerConfiguration | None = None
        self.mpi = MpiConfiguration()
        self.pytorch = PyTorchConfiguration()
        self.tensorflow = TensorflowConfiguration()
        self.amlcompute = AmlComputeConfiguration()
        self.data: dict[str, Any] = {}
        self.output_data: dict[str, Any] = {}
        self.data_references: dict[str, Any] = {}

    @property
    def target(self) -> str:
        """The name of the compute target."""
        return self._target

    @target.setter
    def target(self, value: Any) -> None:
        self._target = target_name(value)

    def save(self, path: str | None = None, name: str | None = None, **kwargs: Any) -> str:
        """Write ``.azureml/NAME.runconfig`` below ``path`` and return its path."""
        yaml = require("yaml", "files of run configurations")
        file_name = _file(path or ".", name or "default")
        os.makedirs(os.path.dirname(file_name), exist_ok=True)
        data = {
            "script": self.script,
            "command": self.command,
            "arguments": [str(each) for each in self.arguments],
            "target": self.target,
            "framework": self.framework,
            "communicator": self.communicator,
            "nodeCount": self.node_count,
            "maxRunDurationSeconds": self.max_run_duration_seconds,
            "priority": self.priority,
            "environmentVariables": dict(self.environment_variables),
            "environment": self.environment.as_dict(),
            "mpi": {"processCountPerNode": self.mpi.process_count_per_node},
            "pytorch": {
                "communicationBackend": self.pytorch.communication_backend,
                "processCount": self.pytorch.process_count,
            },
            "tensorflow": {
                "workerCount": self.tensorflow.worker_count,
                "parameterServerCount": self.tensorflow.parameter_server_count,
            },
        }
        with open(file_name, "w", encoding="utf-8") as file:
            yaml.safe_dump(data, file, sort_keys=False)
        return file_name

    @staticmethod
    def load(path: str, name: str | None = None, **kwargs: Any) -> RunConfiguration:
        """Return a configuration that ``save`` or Microsoft's SDK has written.

        Arguments:
            path: The file, or the folder with ``.azureml``.
            name: The name of the configuration, by default ``default``.

        Raises UserErrorException if there is none, or if it is not valid YAML.
        """
        yaml = require("yaml", "files of run configurations")
        file_name = path if os.path.isfile(path) else _file(path, name or "default")
        try:
            with open(file_name, encoding="utf-8") as file:
                data = yaml.safe_load(file)
        except (OSError, yaml.YAMLError) as error:
            raise UserErrorException(
                f"the run configuration {file_name} cannot be read: {error}"
            ) from error
        return _from_dict(data or {}, _project(file_name))


def _from_dict(data: Mapping[str, Any], folder: str) -> RunConfiguration:
    """Return a run configuration from data with the keys of the SDK; any may be missing."""
    mpi, pytorch, tensorflow = (data.get(key) or {} for key in ("mpi", "pytorch", "tensorflow"))
    made = RunConfiguration(
        data.get("script"),
        data.get("arguments"),
        data.get("framework"),
        data.get("communicator"),
        command=data.get("command") or None,
    )
    made.target = data.get("target") or "local"
    made.node_count = data.get("nodeCount") or 1
    made.max_run_duration_seconds = data.get("maxRunDurationSeconds") or MAX_SECONDS
    made.priority = data.get("priority")
    made.environment_variables = dict(data.get("environmentVariables") or {})
    if data.get("environment"):
        made.environment = Environment._from_dict(data["environment"], folder)
    made.mpi = MpiConfiguration(mpi.get("processCountPerNode") or 1, made.node_count)
    made.pytorch = PyTorchConfiguration(
        pytorch.get("communicationBackend") or "nccl", pytorch.get("processCount"), made.node_count
    )
    made.tensorflow = TensorflowConfiguration(
        tensorflow.get("workerCount", 1), tensorflow.get("parameterServerCount", 1)
    )
    return made


def _project(file_name: str) -> str:
    """Return the folder of a project, given its run configuration."""
    folder = os.path.dirname(os.path.abspath(file_name))
    inside = os.path.basename(folder) in (".azureml", "aml_config")
    return os.path.dirname(folder) if inside else folder


def target_name(target: Any) -> str:
    """Return the name of a compute target, given as an object or by name; None is ``local``."""
    if target is None:
        return "local"
    return target if isinstance(target, str) else str(target.name)


def _file(path: str, name: str) -> str:
    return os.path.join(path, ".azureml", f"{name}.runconfig")
