"""``Sweep``: a request for many runs with different parameters."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder, read_json, write_json
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs import environ, inputs
from farandole.jobs.experiment import ScriptRun
from farandole.jobs.submission import Submission
from farandole.jobs.sweeps.policies import NoPolicy, Policy, make_policy
from farandole.jobs.sweeps.space import Distribution, grid

SEARCHES = ("random", "grid", "study")
PLAN, STUDY = "sweep.json", "study.pkl"


@dataclass(frozen=True)
class Sweep:
    """A request to run a script with many values of its parameters.

    Arguments:
        request: The script. A parameter replaces ``{name}`` in the script's arguments; without
            ``{name}``, it is appended as ``--name value``.
        space: A distribution for each parameter.
        metric: The logged metric that determines the best run.
        goal: ``minimize`` or ``maximize``.
        search: ``random``, ``grid``, or an Optuna study, whose ``ask`` and ``tell`` choose the
            values.
        count: The number of runs; 0 for all combinations of a grid.
        concurrent: The maximum number of active runs.
        policy: Ends unpromising runs early.
        seed: The seed of the random search.
        time_limit: Seconds after which active runs are canceled and no more runs start; 0 for no
            limit.
    """

    request: ScriptRun
    space: Mapping[str, Distribution]
    metric: str
    goal: str = "minimize"
    search: Any = "random"
    count: int = 0
    concurrent: int = 1
    policy: Policy = field(default_factory=NoPolicy)
    seed: int = 0
    time_limit: float = 0.0

    def submission(self, experiment: str) -> Submission:
        """Return the submission of the run that controls the sweep."""
        self._check()
        base = self.request.submission(experiment)
        # The controller's environment contains the secret variables of its runs, and the full URLs
        # of their inputs.
        spec, secret = environ.withhold(base.spec)
        secret |= inputs.secret_variables(spec.inputs)
        spec = dataclasses.replace(spec, inputs=inputs.public(spec.inputs))
        controller = RunSpec(
            experiment=experiment,
            command=("python", "-m", "farandole.jobs.sweeps.controller"),
            name=self.request.name,
            resources=Resources(cores=0.0),
            tags={**base.spec.tags, "kind": "sweep"},
            grace_seconds=base.spec.grace_seconds,
            source=base.spec.source,
            variables=secret,
        )
        files = {PLAN: self._plan(spec)}
        pickled = {} if isinstance(self.search, str) else {STUDY: self._pickled_study()}
        return Submission(controller, base.source, files=files, data=pickled)

    def _check(self) -> None:
        if self.goal not in ("minimize", "maximize"):
            raise SettingsError(f"goal={self.goal!r} must be 'minimize' or 'maximize'")
        if not self.space:
            raise SettingsError("a sweep needs at least one parameter in its space")
        if self.concurrent < 1:
            raise SettingsError(f"concurrent={self.concurrent} must be at least 1")
        if isinstance(self.search, str) and self.search not in ("random", "grid"):
            raise SettingsError(
                f"search={self.search!r} must be 'random', 'grid' or an Optuna study"
            )
        if self.search == "grid":
            next(grid(self.space))
        elif self.count < 1:
            raise SettingsError(f"count={self.count}: the number of runs to try must be at least 1")

    def _plan(self, base: RunSpec) -> dict[str, Any]:
        kind = type(self.policy)
        return {
            "base": base.to_json(),
            "space": {name: [each.kind, list(each.arguments)] for name, each in self.space.items()},
            "metric": self.metric,
            "goal": self.goal,
            "search": self.search if isinstance(self.search, str) else "study",
            "count": self.count,
            "concurrent": self.concurrent,
            "seed": self.seed,
            "time_limit": self.time_limit,
            "policy": {"kind": _policy_name(kind), "arguments": policy_arguments(self.policy)},
        }

    def _pickled_study(self) -> bytes:
        if not (hasattr(self.search, "ask") and hasattr(self.search, "tell")):
            raise SettingsError(
                f"search={self.search!r} must be 'random', 'grid' or an Optuna study"
            )
        try:
            data: bytes = cloudpickle.dumps(self.search)
        except Exception as error:
            raise SettingsError(
                f"the study cannot be sent to the sweep's process: {error}; use a study with a"
                " storage that other processes reach"
            ) from error
        return data


def policy_arguments(policy: Any) -> dict[str, Any]:
    """Return the arguments of a built-in policy by name."""
    return dict(policy._asdict())


def _policy_name(kind: type) -> str:
    from farandole.jobs.sweeps.policies import POLICIES

    names = [name for name, known in POLICIES.items() if known is kind]
    if not names:
        raise SettingsError(f"policy={kind.__name__} is not one of {', '.join(POLICIES)}")
    return names[0]


@dataclass(frozen=True)
class Plan:
    """The description of a sweep, which the controller reads from its run's folder."""

    base: RunSpec
    space: Mapping[str, Distribution]
    metric: str
    maximize: bool
    search: str
    count: int
    concurrent: int
    seed: int
    policy: Policy
    time_limit: float


def load_plan(folder: RunFolder) -> Plan:
    """Return the plan from a sweep's run. Raises SettingsError if the run is not a sweep."""
    data = read_json(folder.file(PLAN))
    if data is None:
        raise SettingsError(f"run {folder.run_id} is not a sweep")
    return Plan(
        base=RunSpec.from_json(data["base"]),
        space={
            name: Distribution(kind, tuple(args)) for name, (kind, args) in data["space"].items()
        },
        metric=data["metric"],
        maximize=data["goal"] == "maximize",
        search=data["search"],
        count=data["count"],
        concurrent=data["concurrent"],
        seed=data["seed"],
        policy=make_policy(data["policy"]["kind"], data["policy"]["arguments"]),
        time_limit=data.get("time_limit", 0.0),
    )


def child_spec(plan: Plan, parent: str, number: int, values: Mapping[str, Any]) -> RunSpec:
    """Return the specification of a single run of a sweep."""
    command = list(plan.base.command)
    for name, value in values.items():
        mark = "{" + name + "}"
        if any(mark in word for word in command):
            command = [word.replace(mark, str(value)) for word in command]
        elif command[:2] == ["/bin/sh", "-c"]:
            command[2] += f" --{name} {shlex.quote(str(value))}"
        else:
            command += [f"--{name}", str(value)]
    return dataclasses.replace(
        plan.base,
        command=tuple(command),
        parent=parent,
        parameters={**plan.base.parameters, **values},
        tags={**plan.base.tags, "sweep_run": str(number)},
    )


def save_best(folder: RunFolder, best: Mapping[str, Any]) -> None:
    """Write the best run of a sweep to its outputs."""
    folder.folder("outputs")
    write_json(folder.file("outputs", "best.json"), best)
