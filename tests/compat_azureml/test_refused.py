"""Parts of the SDK that are not supported are refused with one line."""

from __future__ import annotations

import importlib

import pytest
from azureml._farandole.refused import INSTEAD

from tests.kits.messages import mentioning

MODULES = [
    "azureml.automl.core",
    "azureml.core.webservice",
    "azureml.interpret",
    "azureml.opendatasets",
    "azureml.pipeline.core",
    "azureml.pipeline.steps",
    "azureml.train.automl",
    "azureml.train.dnn",
    "azureml.train.estimator",
]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_refused(module: str) -> None:
    parent = next(name for name in INSTEAD if module == name or module.startswith(f"{name}."))
    with pytest.raises(ImportError, match=mentioning(parent, INSTEAD[parent])) as caught:
        importlib.import_module(module)
    assert "\n" not in str(caught.value)


def test_names_of_web_services_are_refused() -> None:
    with pytest.raises(ImportError, match=mentioning("azureml.core.model.InferenceConfig")):
        from azureml.core.model import InferenceConfig  # noqa: F401


def test_services_of_azure_are_no_compute_targets() -> None:
    with pytest.raises(ImportError, match=mentioning("AksCompute", "RemoteCompute")):
        from azureml.core.compute import AksCompute  # noqa: F401


def test_every_refused_module_is_a_package_that_refuses() -> None:
    for name in INSTEAD:
        if name not in ("azureml.core.compute", "azureml.core.model"):
            with pytest.raises(ImportError, match=mentioning(name)):
                importlib.import_module(name)
