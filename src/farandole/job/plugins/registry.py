"""The known implementations by name, imported on first use.

Other distributions add their own through entry points; see ``GROUPS``.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from farandole.errors import SettingsError, did_you_mean

BUILT_IN: dict[str, dict[str, str]] = {
    "launcher": {
        "local": "farandole.job.launch.launchers.local:LocalLauncher",
        "ssh": "farandole.job.launch.launchers.ssh:SshLauncher",
        "spark": "farandole.job.launch.launchers.spark:SparkLauncher",
        "mpi": "farandole.job.launch.launchers.mpi:MpiLauncher",
        "slurm": "farandole.job.launch.launchers.slurm:SlurmLauncher",
    },
    "codec": {
        "fp16": "farandole.strategies.codecs.half:Fp16",
        "bf16": "farandole.strategies.codecs.half:Bf16",
        "int8": "farandole.strategies.codecs.int8:Int8",
        "onebit": "farandole.strategies.codecs.onebit:OneBit",
        "sign": "farandole.strategies.codecs.sign:Sign",
        "topk": "farandole.strategies.codecs.topk:TopK",
        "randomk": "farandole.strategies.codecs.randomk:RandomK",
        "threshold": "farandole.strategies.codecs.threshold:Threshold",
        "powersgd": "farandole.strategies.codecs.powersgd:PowerSgd",
        "net": "farandole.strategies.codecs.net:Net",
    },
    "wire": {
        "shm": "farandole.core.transports.shm:wire",
        "tcp": "farandole.core.transports.tcp:wire",
    },
    "target": {
        "local": "farandole.jobs.targets.local:LocalTarget",
        "ssh": "farandole.jobs.targets.ssh:SshTarget",
        "slurm": "farandole.jobs.targets.slurm:SlurmTarget",
        "spark": "farandole.jobs.targets.spark:SparkTarget",
    },
    "mirror": {
        "mlflow": "farandole.jobs.mirrors.mlflow:MlflowMirror",
        "tensorboard": "farandole.jobs.mirrors.tensorboard:TensorBoardMirror",
        "trackio": "farandole.jobs.mirrors.trackio:TrackioMirror",
    },
    # The display of a run in a notebook: by a function of the run, and as HTML.
    "view": {
        "cell": "farandole.dashboard.widget.show:show_run",
        "html": "farandole.dashboard.widget.show:html_of_run",
    },
    # The driver's recording of a job as a run.
    "tracking": {"run": "farandole.jobs.tracked:run"},
    # Subcommands of `farandole` in higher rooms.
    "command": {
        name: f"farandole.jobs.commands.{name}"
        for name in (
            "submit",
            "runs",
            "show",
            "logs",
            "compare",
            "rerun",
            "stop",
            "gc",
            "export",
            "targets",
            "sweep",
        )
    }
    | {name: f"farandole.dashboard.commands.{name}" for name in ("dashboard", "report")},
    "strategy": {
        "local_sgd": "farandole.strategies.modes.local_sgd:LocalSGD",
        "bmuf": "farandole.strategies.modes.local_sgd:BMUF",
        "diloco": "farandole.strategies.modes.local_sgd:DiLoCo",
        "easgd": "farandole.strategies.modes.easgd:EASGD",
        "gossip": "farandole.strategies.gossip.synchronous:Gossip",
        "gossip_async": "farandole.strategies.gossip.background:AsyncGossip",
        "ps": "farandole.strategies.modes.parameter_server:ParameterServer",
        "ps_async": "farandole.strategies.modes.parameter_server:AsyncParameterServer",
        "ssp": "farandole.strategies.modes.parameter_server:SSP",
    },
    # By the package that owns an object: the only way from a lower package to a higher one, with
    # which ``tensorflow`` handles Keras's optimizers and models.
    "optimizer": {
        "keras": "farandole.keras.optimizer:DistributedOptimizer",
        "tf_keras": "farandole.keras.tf_keras.optimizer:DistributedOptimizer",
    },
    "state": {
        "keras": "farandole.keras.elastic:KerasState",
        "tf_keras": "farandole.keras.tf_keras.elastic:KerasState",
    },
    # The places of elastic jobs, by a launcher whose cluster finds the hosts itself.
    "places": {"spark": "farandole.job.launch.elastic.spark.places:spark_places"},
    # Actions of a state at a commit, by check.
    "commit_check": {
        "replicas": "farandole.checks.replica_repair:ReplicaRepair",
        "stragglers": "farandole.checks.stragglers:StragglerCheck",
    },
    "batch_norm": {
        "keras": "farandole.keras.sync_batch_norm:SyncBatchNormalization",
        "tf_keras": "farandole.keras.tf_keras.sync_batch_norm:SyncBatchNormalization",
    },
    # Modules that also have a public name in a lower package.
    "api": {"keras": "farandole.keras", "tf_keras": "farandole.keras.tf_keras"},
    "callbacks": {
        "keras": "farandole.keras.callbacks",
        "tf_keras": "farandole.keras.tf_keras.callbacks",
    },
    "elastic": {"keras": "farandole.keras.elastic", "tf_keras": "farandole.keras.tf_keras.elastic"},
}

# The entry-point groups with which other distributions add to a kind.
GROUPS = {
    "launcher": "farandole.launchers",
    "codec": "farandole.codecs",
    "wire": "farandole.wires",
    "strategy": "farandole.strategies",
    "target": "farandole.targets",
    "mirror": "farandole.mirrors",
}

_CHOSEN = ("launcher", "wire")  # kinds with "auto", which selects the best implementation


def names(kind: str) -> list[str]:
    """Return all known names of a kind, the built-in names first."""
    return [*BUILT_IN[kind], *sorted(_installed(kind).keys() - BUILT_IN[kind].keys())]


def load(kind: str, name: str) -> Any:
    """Return the class (or module) called ``name``.

    Raises SettingsError for an unknown name or a missing package.
    """
    check(kind, name)
    target = BUILT_IN[kind].get(name) or _installed(kind)[name]
    module, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    except ImportError as error:
        raise SettingsError(
            f"the {kind} {name!r} needs a package that is not installed: {error}"
        ) from error


def check(kind: str, spec: str) -> None:
    """Raise SettingsError for an unknown name at the beginning of ``spec`` ("name" or
    "name:argument").
    """
    name = spec.partition(":")[0]
    if name not in BUILT_IN[kind] and name not in _installed(kind):
        known = names(kind)
        auto = "auto, " if kind in _CHOSEN else ""
        near = did_you_mean(name, known)
        raise SettingsError(f"unknown {kind} {name!r} (known: {auto}{', '.join(known)}){near}")


def make(kind: str, spec: str) -> Any:
    """Return an instance of the class named by ``spec``: "name", or "name:argument", which passes
    the argument as text.

    Raises SettingsError as ``load`` does, and for an argument that the class rejects.
    """
    name, colon, argument = spec.partition(":")
    made = load(kind, name)
    try:
        return made(argument) if colon else made()
    except TypeError as error:  # an unexpected or a missing argument
        rule = "takes no argument" if colon else "needs an argument"
        raise SettingsError(
            f"{kind}={spec!r}: {name} {rule}, as in name:argument ({error})"
        ) from None


def best(kind: str, request: Any) -> Any:
    """Return an instance of the kind with the highest ``affinity(request)``.

    Implementations with an affinity of 0 or less must be requested by name. Raises SettingsError if
    none is left.
    """
    found = [load(kind, name)() for name in names(kind)]
    chosen = max(found, key=lambda candidate: candidate.affinity(request))
    if chosen.affinity(request) < 1:
        raise SettingsError(f"no {kind} works here; known: {', '.join(names(kind))}")
    return chosen


def _installed(kind: str) -> dict[str, str]:
    """Return entry points by name.

    ``importlib.metadata`` would parse every distribution's metadata, which takes longer than
    starting a job. This function reads only files that contain the group.
    """
    found: dict[str, str] = {}
    if kind not in GROUPS:
        return found
    header = f"[{GROUPS[kind]}]"
    for folder in sys.path:
        try:
            names = [
                name
                for name in os.listdir(folder or ".")
                if name.endswith((".dist-info", ".egg-info"))
            ]
        except OSError:
            continue
        for name in names:
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            _, there, rest = text.partition(header)
            for line in rest.split("\n[", 1)[0].splitlines() if there else ():
                key, equals, value = line.partition("=")
                if equals:
                    found.setdefault(key.strip(), value.split("[")[0].strip())
    return found
