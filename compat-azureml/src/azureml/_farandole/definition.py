"""``runDefinition`` of ``get_details()``: the request with the keys of Azure's service."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farandole.job.runs.spec import RunSpec
from farandole.jobs import environ

if TYPE_CHECKING:
    from azureml._farandole.arguments import Arguments
    from azureml._farandole.layout import Layout
    from azureml.core.script_run_config import ScriptRunConfig

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@\"]+@")  # of URLs
FILE = "azureml.json"  # in the run's folder: the facts that only this SDK shows
INTERACTIVE = "interactive"  # the key in this file for a run of ``start_logging``

# The values of Azure's service for products that have no counterpart here.
_CONSTANT: dict[str, Any] = {
    "parallelTask": {
        "maxRetriesPerWorker": 0,
        "workerCountPerNode": 1,
        "terminalExitCodes": None,
        "configuration": {},
    },
    "amlCompute": {
        "name": None,
        "vmSize": None,
        "retainCluster": False,
        "clusterMaxNodeCount": None,
    },
    "aiSuperComputer": {
        "instanceType": "D2",
        "imageVersion": "pytorch-1.7.0",
        "location": None,
        "aiSuperComputerStorageData": None,
        "interactive": False,
        "scalePolicy": None,
        "virtualClusterArmId": None,
        "tensorboardLogDirectory": None,
        "sshPublicKey": None,
        "sshPublicKeys": None,
        "enableAzmlInt": True,
        "priority": "Medium",
        "slaTier": "Standard",
        "userAlias": None,
    },
    "hdi": {"yarnDeployMode": "Cluster"},
    "containerInstance": {"region": None, "cpuCores": 2.0, "memoryGb": 3.5},
    "exposedPorts": None,
    "cmk8sCompute": {"configuration": {}},
    "commandReturnCodeConfig": {"returnCode": "Zero", "successfulReturnCodes": []},
    "spark": {
        "configuration": {
            "spark.app.name": "Azure ML Experiment",
            "spark.yarn.maxAppAttempts": "1",
        }
    },
}


def definition_of(config: ScriptRunConfig, arguments: Arguments, layout: Layout) -> dict[str, Any]:
    """Return the definition of a run with all its keys."""
    run_config = config.run_config
    is_text = not config.script
    return {
        "script": config.script,
        "command": " ".join(arguments.shown) if is_text else "",
        "useAbsolutePath": False,
        "arguments": [] if is_text else arguments.shown,
        "sourceDirectoryDataStore": None,
        "framework": run_config.framework,
        "communicator": str(run_config.communicator),
        "target": run_config.target,
        "dataReferences": {},
        "data": _data(arguments),
        "outputData": _output_data(arguments),
        "datacaches": [],
        "jobName": None,
        "maxRunDurationSeconds": run_config.max_run_duration_seconds,
        "nodeCount": layout.nodes,
        "instanceTypes": [],
        "priority": run_config.priority,
        "credentialPassthrough": False,
        "identity": None,
        "environment": _environment(run_config.environment),
        "history": {
            "outputCollection": run_config.history.output_collection,
            "directoriesToWatch": [*run_config.history.directories_to_watch],
            "enableMLflowTracking": True,
            "snapshotProject": run_config.history.snapshot_project,
        },
        "tensorflow": {
            "workerCount": run_config.tensorflow.worker_count,
            "parameterServerCount": run_config.tensorflow.parameter_server_count,
        },
        "mpi": {"processCountPerNode": run_config.mpi.process_count_per_node},
        "pyTorch": {
            "communicationBackend": run_config.pytorch.communication_backend,
            "processCount": run_config.pytorch.process_count,
        },
        "docker": _docker(run_config.docker),
        "environmentVariables": _public(run_config.environment_variables),
        "applicationEndpoints": {},
        **_CONSTANT,
    }


def definition_of_spec(spec: RunSpec) -> dict[str, Any]:
    """Return the definition of a run that was not submitted through this SDK."""
    from azureml._farandole.arguments import Arguments
    from azureml._farandole.layout import Layout
    from azureml.core.runconfig import RunConfiguration
    from azureml.core.script_run_config import ScriptRunConfig

    resources = spec.resources
    config = RunConfiguration(communicator="Mpi" if resources.ranks > 1 else None)
    config.target = spec.target
    config.node_count = resources.nodes
    config.mpi.process_count_per_node = resources.ranks_per_node
    config.environment_variables = dict(spec.variables)
    config.max_run_duration_seconds = int(spec.time_limit) or None
    config.environment.python.conda_dependencies = None
    layout = Layout(resources.nodes, resources.ranks_per_node, spec.tf_workers)
    shown = {f"{{{each.name}}}": f"DatasetConsumptionConfig:{each.name}" for each in spec.inputs}
    words = [shown.get(word, word) for word in spec.command]
    is_script = len(words) > 1 and words[0] == "python"
    arguments = Arguments(words, words[2:] if is_script else words, {}, {})
    made = ScriptRunConfig(
        ".",
        words[1] if is_script else None,
        run_config=config,
        command=None if is_script else " ".join(words) or "a function",
    )
    return definition_of(made, arguments, layout)


def _data(arguments: Arguments) -> dict[str, Any]:
    return {
        name: {
            "dataLocation": {
                "dataset": {
                    "id": each.dataset.get("id"),
                    "name": each.dataset.get("name"),
                    "version": each.dataset.get("version"),
                },
                "dataPath": None,
                "uri": None,
                "type": None,
            },
            "mechanism": each.mode.capitalize(),
            "environmentVariableName": name,
            "pathOnCompute": each.path_on_compute,
            "overwrite": False,
            "options": None,
        }
        for name, each in arguments.inputs.items()
    }


def _output_data(arguments: Arguments) -> dict[str, Any]:
    return {
        name: {
            "outputLocation": {"dataset": None, "dataPath": None, "uri": None, "type": None},
            "mechanism": each.details.get("outputDetails", {}).get("mechanism", "Mount"),
            "additionalOptions": {"pathOnCompute": None, "registrationOptions": None},
            "environmentVariableName": name,
        }
        for name, each in arguments.outputs.items()
    }


def _environment(environment: Any) -> dict[str, Any]:
    from azureml.core.environment import autosaved_version

    data: dict[str, Any] = environment.as_dict()
    data["version"] = data["version"] or autosaved_version()
    data["python"].pop("condaDependenciesFile")
    data.pop("policy")
    data["environmentVariables"] = _public(data["environmentVariables"])
    data["python"] = json.loads(_CREDENTIALS.sub("", json.dumps(data["python"])))
    return data


def _public(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that hold secrets."""
    spec, _ = environ.withhold(RunSpec("public", variables=variables))
    return dict(spec.variables)


def _docker(docker: Any) -> dict[str, Any]:
    return {
        "useDocker": docker.use_docker if docker else False,
        "sharedVolumes": docker.shared_volumes if docker else True,
        "shmSize": docker.shm_size if docker else "2g",
        "arguments": [*docker.arguments] if docker else [],
    }
