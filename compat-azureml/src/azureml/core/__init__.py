"""Workspaces, experiments, runs, environments, compute targets and data."""

from azureml._farandole import lazy

VERSION = "1.61.0"  # the version of azureml-core whose interface this is
__version__ = VERSION

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "ComputeTarget": "azureml.core.compute_target",
        "ContainerRegistry": "azureml.core.container_registry",
        "Dataset": "azureml.core.dataset",
        "Datastore": "azureml.core.datastore",
        "Environment": "azureml.core.environment",
        "Experiment": "azureml.core.experiment",
        "Keyvault": "azureml.core.keyvault",
        "Model": "azureml.core.model",
        "Run": "azureml.core.run",
        "RunConfiguration": "azureml.core.runconfig",
        "ScriptRun": "azureml.core.script_run",
        "ScriptRunConfig": "azureml.core.script_run_config",
        "Workspace": "azureml.core.workspace",
        "get_run": "azureml.core.run",
    },
)
