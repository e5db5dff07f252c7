"""Names of the SDK that are not supported, each with its replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

INSTEAD = {
    "azureml.automl": "try settings with a sweep: azureml.train.hyperdrive",
    "azureml.contrib": "use azureml.core",
    "azureml.core.compute": "use AmlCompute for this host, RemoteCompute for hosts reached by ssh",
    "azureml.core.image": "package the model with your own Dockerfile",
    "azureml.core.model": "load the model of Model.get_model_path() in your own server",
    "azureml.core.webservice": "load the model of Model.get_model_path() in your own server",
    "azureml.dataprep": "read files with pandas, or use azureml.core.Dataset",
    "azureml.explain": "use the package shap or interpret",
    "azureml.interpret": "use the package shap or interpret",
    "azureml.mlflow": "copy metrics with --mirror mlflow (docs/tracking.md of Farandole)",
    "azureml.opendatasets": "use Dataset.File.from_files with the URL of the files",
    "azureml.pipeline": "submit one ScriptRunConfig after the other; wait_for_completion() between",
    "azureml.train.automl": "try settings with a sweep: azureml.train.hyperdrive",
    "azureml.train.dnn": "use azureml.core.ScriptRunConfig with a distributed_job_config",
    "azureml.train.estimator": "use azureml.core.ScriptRunConfig",
    "azureml.train.sklearn": "use azureml.core.ScriptRunConfig",
}


def refuse(name: str) -> NoReturn:
    """Raise ImportError with the replacement of a module, or of a name of a module."""
    module = name if name in INSTEAD else name.rpartition(".")[0]
    raise ImportError(f"{name} is not supported by Farandole; {INSTEAD[module]}", name=module)


def refused_names(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a module, which raises ImportError for the refused ``names``."""

    def load(name: str) -> Any:
        if name in names:
            refuse(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return load
