"""Sweeps over hyperparameters."""

from azureml._farandole import lazy

_EXPRESSIONS = (
    *("choice", "lognormal", "loguniform", "normal", "qlognormal", "qloguniform", "qnormal"),
    *("quniform", "randint", "uniform"),
)
_SAMPLINGS = ("BayesianParameterSampling", "GridParameterSampling", "RandomParameterSampling")
_POLICIES = (
    *("BanditPolicy", "EarlyTerminationPolicy", "MedianStoppingPolicy", "NoTerminationPolicy"),
    "TruncationSelectionPolicy",
)

__getattr__, __all__ = lazy.names(
    __name__,
    {
        **dict.fromkeys(_EXPRESSIONS, "azureml.train.hyperdrive.parameter_expressions"),
        **dict.fromkeys(_SAMPLINGS, "azureml.train.hyperdrive.sampling"),
        **dict.fromkeys(_POLICIES, "azureml.train.hyperdrive.policy"),
        "HyperDriveConfig": "azureml.train.hyperdrive.runconfig",
        "HyperDriveRun": "azureml.train.hyperdrive.run",
        "PrimaryMetricGoal": "azureml.train.hyperdrive.runconfig",
    },
)
