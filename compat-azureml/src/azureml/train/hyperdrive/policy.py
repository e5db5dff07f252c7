"""Policies that end unpromising runs of a sweep early."""

from __future__ import annotations

from typing import Any

from azureml.exceptions import HyperDriveConfigException
from farandole.errors import SettingsError
from farandole.jobs.sweeps.policies import Policy, make_policy


class EarlyTerminationPolicy:
    """The base of all policies.

    A run is judged at every ``evaluation_interval``-th report of the primary metric, after the
    first ``delay_evaluation`` ones.
    """

    POLICY_NAME = ""

    def __init__(
        self, kind: str, evaluation_interval: int, delay_evaluation: int, **own: Any
    ) -> None:
        self.evaluation_interval = evaluation_interval
        self.delay_evaluation = delay_evaluation
        given = {"evaluation_interval": evaluation_interval, "delay_evaluation": delay_evaluation}
        try:
            self._policy: Policy = make_policy(kind, {**own, **(given if kind != "none" else {})})
        except SettingsError as error:
            raise HyperDriveConfigException(f"{type(self).__name__}: {error}") from error


class BanditPolicy(EarlyTerminationPolicy):
    """Ends runs that are worse than the best one by more than a factor or an amount."""

    POLICY_NAME = "Bandit"

    def __init__(
        self,
        evaluation_interval: int = 1,
        slack_factor: float | None = None,
        slack_amount: float | None = None,
        delay_evaluation: int = 0,
    ) -> None:
        """``slack_factor``: the allowed relative difference; ``slack_amount``: the absolute one.

        Raises HyperDriveConfigException unless exactly one of the two is given.
        """
        self.slack_factor = slack_factor
        self.slack_amount = slack_amount
        own = {"slack_factor": slack_factor or 0.0, "slack_amount": slack_amount or 0.0}
        super().__init__("bandit", evaluation_interval, delay_evaluation, **own)


class MedianStoppingPolicy(EarlyTerminationPolicy):
    """Ends runs whose best value is worse than the median of the others' running averages."""

    POLICY_NAME = "MedianStopping"

    def __init__(self, evaluation_interval: int = 1, delay_evaluation: int = 0) -> None:
        super().__init__("median", evaluation_interval, delay_evaluation)


class TruncationSelectionPolicy(EarlyTerminationPolicy):
    """Ends the worst ``truncation_percentage`` of the runs at each evaluation."""

    POLICY_NAME = "TruncationSelection"

    def __init__(
        self, truncation_percentage: int, evaluation_interval: int = 1, delay_evaluation: int = 0
    ) -> None:
        """``truncation_percentage``: the part of the runs to end, in percent.

        Raises HyperDriveConfigException unless the percentage is between 0 and 100.
        """
        self.truncation_percentage = truncation_percentage
        own = {"percentage": truncation_percentage}
        super().__init__("truncation", evaluation_interval, delay_evaluation, **own)


class NoTerminationPolicy(EarlyTerminationPolicy):
    """Ends no run."""

    POLICY_NAME = "Default"

    def __init__(self) -> None:
        super().__init__("none", 1, 0)
