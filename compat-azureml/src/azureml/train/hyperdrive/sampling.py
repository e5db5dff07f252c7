"""The samplings of a sweep: random values, all combinations, or values near good ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from azureml._farandole.texts import notice
from azureml.exceptions import HyperDriveConfigException
from azureml.train.hyperdrive.parameter_expressions import distribution
from farandole.jobs.sweeps.space import Distribution

_BAYESIAN = ("choice", "uniform", "quniform")


class HyperParameterSampling:
    """The base of all samplings."""

    _NAME = ""

    def __init__(
        self, parameter_space: Mapping[str, Sequence[Any]], properties: Any = None
    ) -> None:
        """``parameter_space``: an expression, such as ``uniform(0, 1)``, for each argument.

        Raises HyperDriveConfigException for an invalid expression.
        """
        if not isinstance(parameter_space, Mapping) or not parameter_space:
            raise HyperDriveConfigException(
                f"the parameter space {parameter_space!r} must be a dict with at least one"
                " hyperparameter"
            )
        self.parameter_space = dict(parameter_space)
        self.properties = properties
        self._check()

    def _check(self) -> None:
        self._space()

    def _space(self) -> dict[str, Distribution]:
        """Return the distribution of each hyperparameter by its name without dashes."""
        return {
            name.lstrip("-"): distribution(name, expression)
            for name, expression in self.parameter_space.items()
        }

    def _search(self, maximize: bool) -> Any:
        """Return the search strategy for Farandole's sweeps: a name, or a study of Optuna."""
        return "random"


class RandomParameterSampling(HyperParameterSampling):
    """Random values."""

    _NAME = "RANDOM"


class GridParameterSampling(HyperParameterSampling):
    """All combinations of values; each hyperparameter is a ``choice``."""

    _NAME = "GRID"

    def _check(self) -> None:
        for name, expression in self.parameter_space.items():
            if distribution(name, expression).kind != "choice":
                raise HyperDriveConfigException(
                    f"GridParameterSampling needs choice(...) for {name!r}, not {expression[0]}"
                )

    def _search(self, maximize: bool) -> Any:
        return "grid"


class BayesianParameterSampling(HyperParameterSampling):
    """Values near earlier good ones, chosen by Optuna if it is installed, else at random."""

    _NAME = "BayesianOptimization"

    def _check(self) -> None:
        for name, expression in self.parameter_space.items():
            distribution(name, expression)
            if expression[0] not in _BAYESIAN:
                raise HyperDriveConfigException(
                    f"BayesianParameterSampling needs one of {', '.join(_BAYESIAN)} for {name!r},"
                    f" not {expression[0]}"
                )

    def _search(self, maximize: bool) -> Any:
        if importlib.util.find_spec("optuna") is None:
            notice(
                "BayesianParameterSampling chooses values at random, because optuna is not"
                " installed: pip install optuna"
            )
            return "random"
        import optuna  # type: ignore[import-not-found]

        return optuna.create_study(direction="maximize" if maximize else "minimize")
