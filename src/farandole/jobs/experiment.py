"""``Experiment`` and the requests that it submits: ``ScriptRun`` and ``FunctionRun``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from farandole.errors import SettingsError
from farandole.job.launch.job import check_call
from farandole.job.runs.folder import RUN_ID_VARIABLE, RunFolder
from farandole.job.runs.home import RunsHome, check_experiment
from farandole.job.runs.spec import EnvironmentSpec, InputSpec, Resources, RunSpec
from farandole.jobs.references import listed
from farandole.jobs.run import Run
from farandole.jobs.submission import Submission, submit

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options common to all requests for a run.

    Arguments:
        nodes, ranks_per_node: Their product is the number of ranks.
        min_nodes, max_nodes: The minimum and maximum number of nodes of an elastic run. Either
            makes the run elastic. Defaults: ``nodes`` for ``min_nodes``; for ``max_nodes``, the
            number at the start: ``nodes``, but at least ``min_nodes``.
        target: The name of the target.
        environment: The Python environment: an ``EnvironmentSpec``, or the path of a requirements
            file, ``pyproject.toml`` or conda file.
        inputs: Named inputs: an ``InputSpec`` or a path or URL for each name.
        cores, gpus: The number per rank.
        memory: Bytes per rank; 0 for no requirement.
        name: A display name.
        settings: Settings of ``farandole run`` by name, such as ``{"strategy": "local_sgd:8"}``.
        variables: Environment variables of the ranks.
        parameters: Hyperparameters by name, for comparison.
        tags: Free text by name.
        retries: The maximum number of restarts of a failed run.
        time_limit: Seconds after which the run is stopped; 0 for no limit.
        grace_seconds: Seconds between the request to stop and the kill.
        priority: Runs with higher numbers start first.
        after: Runs, or ids of runs, that must complete before this one starts.
        tf_workers: For programs that read ``TF_CONFIG``: the number of workers; further ranks are
            parameter servers. 0 sets no ``TF_CONFIG``.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    target: str = "local"
    environment: EnvironmentSpec | str | None = None
    inputs: Mapping[str, InputSpec | str] = field(default_factory=dict)
    cores: float = 1.0
    memory: int = 0
    gpus: int = 0
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0
    time_limit: float = 0.0
    grace_seconds: float = 30.0
    priority: int = 0
    after: Sequence[Run | str] = ()
    tf_workers: int = 0
    min_nodes: int = 0
    max_nodes: int = 0

    def resources(self) -> Resources:
        """Return the requested resources. In an elastic run, both bounds are set."""
        found = Resources(self.nodes, self.ranks_per_node, self.cores, self.memory, self.gpus)
        if not (self.min_nodes or self.max_nodes):
            return found
        start = max(self.nodes, self.min_nodes)
        return replace(
            found,
            nodes=start,
            min_nodes=self.min_nodes or start,
            max_nodes=self.max_nodes or start,
        )

    def spec(self, experiment: str, command: Sequence[str] = (), source: str = "") -> RunSpec:
        """Return the specification of a run with these options."""
        return RunSpec(
            experiment=check_experiment(experiment),
            command=tuple(command),
            name=self.name,
            environment=as_environment(self.environment),
            target=self.target,
            resources=self.resources(),
            settings=dict(self.settings),
            variables=dict(self.variables),
            inputs=tuple(as_input(name, value) for name, value in self.inputs.items()),
            retries=self.retries,
            time_limit=self.time_limit,
            grace_seconds=self.grace_seconds,
            priority=self.priority,
            after=tuple(run.id if isinstance(run, Run) else run for run in self.after),
            tags={key: str(value) for key, value in self.tags.items()},
            parent=os.environ.get(RUN_ID_VARIABLE, ""),
            parameters=dict(self.parameters),
            tf_workers=self.tf_workers,
            source=os.path.abspath(source) if source else "",
        )


@dataclass(frozen=True)
class ScriptRun(RunOptions):
    """A request to run a script or a command of a source folder on all ranks.

    Arguments:
        source_directory: The folder of the program. The run uses a snapshot of this folder.
        script: A Python script in that folder.
        arguments: The script's arguments; ``{name}`` is replaced by the path of an input.
        command: A command in place of a script: a list of words, or a shell command line.
        snapshot_limit: The largest snapshot in bytes; 0 for 300 MB in 2,000 files.
    """

    source_directory: str
    script: str = ""
    arguments: Sequence[Any] = ()
    command: Sequence[str] | str = ()
    snapshot_limit: int = 0

    def words(self) -> tuple[str, ...]:
        """Return the command. Raises SettingsError unless one of script and command is set."""
        if bool(self.script) == bool(self.command):
            raise SettingsError("a ScriptRun needs either script= or command=")
        if self.script:
            return ("python", self.script, *map(str, self.arguments))
        if isinstance(self.command, str):
            line = " ".join([self.command, *map(str, self.arguments)])
            return ("/bin/sh", "-c", line)
        return (*self.command, *map(str, self.arguments))

    def submission(self, experiment: str) -> Submission:
        """Return the submission of this request to an experiment."""
        spec = self.spec(experiment, self.words(), self.source_directory)
        return Submission(
            spec, os.fspath(self.source_directory), snapshot_limit=self.snapshot_limit
        )


@dataclass(frozen=True)
class FunctionRun(RunOptions):
    """A request to call ``function(*args, **kwargs)`` on all ranks.

    The function is pickled as in ``farandole.run``: it may be a lambda or come from a notebook.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def submission(self, experiment: str) -> Submission:
        """Return the submission of this request to an experiment."""
        call = check_call(self.function, self.args, self.kwargs)
        return Submission(self.spec(experiment), call=call)


class RunRequest(Protocol):
    """A request that an experiment can submit: ``ScriptRun``, ``FunctionRun`` or ``Sweep``."""

    def submission(self, experiment: str) -> Submission:
        """Return the submission of this request to an experiment."""


class Experiment:
    """A named group of runs: ``Experiment("xray").submit(ScriptRun("./project", "train.py"))``."""

    def __init__(self, name: str, home: str | None = None) -> None:
        """``home``: the folder of all runs; by default ``$FARANDOLE_HOME``.

        Raises SettingsError if ``name`` has characters that a folder's name cannot have.
        """
        self.name = check_experiment(name)
        self._home = RunsHome(home)

    def submit(self, request: RunRequest) -> Run:
        """Put a run into the queue and return it immediately.

        Raises SettingsError, before anything is created, for a request that cannot succeed.
        """
        return Run(submit(request.submission(self.name), self._home), self._home)

    def runs(self) -> list[Run]:
        """Return the runs of this experiment, newest first."""
        rows = listed(self._home, "experiment = ?", (self.name,))
        return [Run(RunFolder(row.path), self._home) for row in rows]

    def limit(self, most_active: int) -> None:
        """Limit this experiment to ``most_active`` active runs; 0 removes the limit."""
        self._home.set_limit(self.name, most_active)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r})"


def as_environment(given: EnvironmentSpec | str | None) -> EnvironmentSpec:
    """Return the spec of an environment, from a spec or the path of a file."""
    if given is None:
        return EnvironmentSpec()
    return EnvironmentSpec(file=given) if isinstance(given, str) else given


def as_input(name: str, given: InputSpec | str) -> InputSpec:
    """Return the spec of the input ``name``, from a spec, a path or a URL."""
    return InputSpec(name, os.fspath(given)) if not isinstance(given, InputSpec) else given


class DistributedFunction(Generic[T]):
    """A function that runs in this process when called, and on all ranks with ``distributed``."""

    def __init__(self, function: Callable[..., T], np: int, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._np = np
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        return self._function(*args, **kwargs)

    def distributed(self, *args: Any, **kwargs: Any) -> list[T]:
        """Call the function on all processes and return the results in rank order.

        Raises JobFailedError, or RunFailedError on a target, if a process fails.
        """
        options = dict(self._options)
        if "target" not in options:
            from farandole.job.launch.api import run

            return run(self._function, args, kwargs, np=self._np, **options)
        experiment = options.pop("experiment", self._function.__name__)
        request = FunctionRun(self._function, args, kwargs, ranks_per_node=self._np, **options)
        return Experiment(experiment).submit(request).results()

    def with_overrides(self, *, np: int | None = None, **options: Any) -> DistributedFunction[T]:
        """Return the same function with other options."""
        return DistributedFunction(self._function, np or self._np, {**self._options, **options})


def distributed(
    *, np: int = 1, **options: Any
) -> Callable[[Callable[..., T]], DistributedFunction[T]]:
    """Return a decorator that adds the method ``distributed`` to a function.

    Without ``target``, the options are passed to ``farandole.run``. With ``target``, each call
    submits a run with the options of ``FunctionRun``, in the experiment ``experiment=``.

        @farandole.distributed(np=4)
        def train(lr): ...

        results = train.distributed(lr=0.1)
    """

    def decorate(function: Callable[..., T]) -> DistributedFunction[T]:
        return DistributedFunction(function, np, options)

    return decorate
