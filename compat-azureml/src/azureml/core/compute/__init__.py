"""Kinds of compute targets."""

from azureml._farandole.refused import refused_names
from azureml.core.compute.amlcompute import AmlCompute
from azureml.core.compute.amlcompute import AmlComputeStatus as AmlComputeStatus
from azureml.core.compute.hosts import (
    BatchCompute,
    ComputeInstance,
    DsvmCompute,
    KubernetesCompute,
    RemoteCompute,
)
from azureml.core.compute_target import ComputeTarget

__all__ = [
    "AmlCompute",
    "BatchCompute",
    "ComputeInstance",
    "ComputeTarget",
    "DsvmCompute",
    "KubernetesCompute",
    "RemoteCompute",
]

__getattr__ = refused_names(
    __name__,
    [
        *(
            "AdlaCompute",
            "AksCompute",
            "DataFactoryCompute",
            "DatabricksCompute",
            "HDInsightCompute",
        ),
        *("KustoCompute", "SynapseCompute"),
    ],
)
