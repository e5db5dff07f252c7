"""The target ``local``: processes of this host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import ClassVar

from farandole.base.host import cores
from farandole.cli.machine import memory, visible_gpus
from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.identity import ProcessIdentity
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs import heartbeat
from farandole.jobs.targets.contract import (
    Capacity,
    Launch,
    NodeCounts,
    Presence,
    TargetSpec,
    Ticket,
)


class LocalTarget:
    """A target that executes runs on this host.

    Options: ``cores``, ``memory`` (bytes) and ``gpus`` limit the total resources of all runs. By
    default, runs use all resources of the host.
    """

    kind: ClassVar[str] = "local"
    options: ClassVar[tuple[str, ...]] = ("cores", "memory", "gpus")

    def __init__(self, spec: TargetSpec) -> None:
        check_options(spec, self.options)
        options = spec.options
        self._spec = spec
        self._capacity = Capacity(
            cores=float(options.get("cores") or cores()),
            memory=int(options.get("memory") or memory().total),
            gpus=int(options["gpus"]) if "gpus" in options else visible_gpus(os.environ),
            nodes=spec.max_nodes,
        )

    def check(self, resources: Resources) -> None:
        has = self._capacity
        if has.nodes and resources.most_nodes > has.nodes:
            raise SettingsError(
                f"the target {self._spec.name!r} has at most {has.nodes} nodes, but"
                f" {resources.most_nodes} are requested; request fewer, or raise its max_nodes"
            )
        if resources.gpus * resources.most_ranks > has.gpus:
            raise SettingsError(
                f"{resources.gpus * resources.most_ranks} GPUs are requested, but this host has"
                f" {has.gpus}; request fewer, or choose another target"
            )
        if has.memory and resources.memory * resources.most_ranks > has.memory:
            raise SettingsError(
                f"{resources.memory * resources.most_ranks:,} bytes of memory are requested, but"
                f" this host has {has.memory:,}; request less, or choose another target"
            )

    def capacity(self) -> Capacity:
        return self._capacity

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        return start_here(self._spec.name, folder, command, env)

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        return [presence_here(ticket) for ticket in tickets]

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        end_here(ticket)

    def nodes(self, tickets: Sequence[Ticket]) -> NodeCounts:
        return NodeCounts(running=1) if tickets else NodeCounts(idle=1)

    def launch(self, spec: RunSpec) -> Launch:
        return Launch("local")


def check_options(spec: TargetSpec, known: Sequence[str]) -> None:
    """Raise SettingsError for options unknown to the target's kind."""
    if wrong := sorted(set(spec.options) - set(known)):
        raise SettingsError(
            f"the target {spec.name!r} of kind {spec.kind!r} has no option {wrong[0]!r}"
            f" (options: {', '.join(known)})"
        )


def check_fixed(spec: TargetSpec, resources: Resources) -> None:
    """Raise SettingsError for an elastic run, on a target that starts all ranks at once."""
    if resources.elastic:
        raise SettingsError(
            f"the target {spec.name!r} of kind {spec.kind!r} runs a fixed number of nodes, and"
            f" {resources.min_nodes} to {resources.max_nodes} are requested; omit min_nodes and"
            " max_nodes, or choose a target of kind local or ssh"
        )


def start_here(
    target: str, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]
) -> Ticket:
    """Start a runner on this host in its own session, and return its ticket.

    Raises RunError if the process cannot be started.
    """
    folder.folder("logs")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(folder.file("logs", "runner.txt"), flags, 0o600)
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(env),
            cwd=folder.path,
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"the runner {command[0]} cannot be started: {error}") from error
    finally:
        os.close(log)
    try:
        identity = ProcessIdentity.of(process.pid)
    except ProcessLookupError:  # the process has already ended
        identity = ProcessIdentity.of()._replace(pid=process.pid, started=0)
    process.returncode = 0  # the supervisor's loop reaps it, not this object
    return Ticket(target, {**identity.to_json(), "folder": folder.path})


def presence_here(ticket: Ticket) -> Presence:
    """Return the presence of a runner on this host, or on another host with the same home."""
    identity = ProcessIdentity.from_json(ticket.data)
    if identity.alive():
        return Presence("present")
    if identity.here:
        return Presence("gone", "its runner was killed", preempted=True)
    if identity.host != socket.gethostname():  # that host shares the home
        silent = heartbeat.silence(RunFolder(ticket.data.get("folder", "")))
        if silent > heartbeat.LOST:
            why = f"no heartbeat of its runner on host {identity.host} for {silent:.0f} seconds"
            return Presence("gone", why, preempted=True)
        return Presence("present", f"on host {identity.host}")
    return Presence("gone", "the host was restarted", preempted=True)


def end_here(ticket: Ticket) -> None:
    """Request a runner on this host to end its run within the grace period."""
    identity = ProcessIdentity.from_json(ticket.data)
    if identity.alive():
        os.kill(identity.pid, signal.SIGTERM)
