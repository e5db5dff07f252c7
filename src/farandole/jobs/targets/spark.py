"""The target ``spark``: ranks are barrier tasks of a Spark cluster. The runner is on this host."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.targets.contract import (
    Capacity,
    Launch,
    NodeCounts,
    Presence,
    TargetSpec,
    Ticket,
)
from farandole.jobs.targets.local import (
    check_fixed,
    check_options,
    end_here,
    presence_here,
    start_here,
)

SESSION_VARIABLE = "PYSPARK_SUBMIT_ARGS"  # read by pyspark when it starts its Java process


class SparkTarget:
    """A target that executes runs on a Spark cluster.

    Options: ``master`` (``yarn``, or a URL such as ``spark://host:7077``) and ``conf`` (Spark's
    settings by name). Without ``master``, Spark's configuration decides.
    """

    kind: ClassVar[str] = "spark"
    options: ClassVar[tuple[str, ...]] = ("master", "conf")

    def __init__(self, spec: TargetSpec) -> None:
        check_options(spec, self.options)
        self._spec = spec

    def check(self, resources: Resources) -> None:
        check_fixed(self._spec, resources)
        if importlib.util.find_spec("pyspark") is None:
            raise SettingsError(
                f"the target {self._spec.name!r} needs pyspark, which is not installed:"
                " pip install pyspark"
            )

    def capacity(self) -> Capacity | None:
        return None  # Spark's scheduler has its own queue

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        submit = submit_arguments(self._spec.options)
        variables = {**env, SESSION_VARIABLE: submit} if submit else env
        return start_here(self._spec.name, folder, command, variables)

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        return [presence_here(ticket) for ticket in tickets]

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        end_here(ticket)

    def nodes(self, tickets: Sequence[Ticket]) -> NodeCounts | None:
        return None  # executors exist only during Spark's sessions

    def launch(self, spec: RunSpec) -> Launch:
        from farandole.job.launch.launchers.spark import SparkLauncher

        return Launch(SparkLauncher(title=spec.name or spec.experiment, create=True))


def submit_arguments(options: Mapping[str, Any]) -> str:
    """Return the arguments of spark-submit for the options; empty without options."""
    import shlex

    words = ["--master", str(options["master"])] if options.get("master") else []
    for name, value in dict(options.get("conf") or {}).items():
        words += ["--conf", f"{name}={value}"]
    return shlex.join([*words, "pyspark-shell"]) if words else ""
