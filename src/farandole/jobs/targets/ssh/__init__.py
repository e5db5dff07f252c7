"""The target ``ssh``: ranks run on hosts reached by ssh. The runner is on this host.

The supervisor chooses the hosts of each run, so that simultaneous runs use different hosts where
possible.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from farandole.errors import SettingsError
from farandole.job.launch.job import settings_for
from farandole.job.launch.openssh import command as ssh_command
from farandole.job.launch.plan import parse_hosts
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.attempts import HOSTS_VARIABLE
from farandole.jobs.targets.contract import (
    Capacity,
    Launch,
    NodeCounts,
    Presence,
    TargetSpec,
    Ticket,
)
from farandole.jobs.targets.local import check_options, end_here, presence_here, start_here
from farandole.net.interfaces import is_here


class SshTarget:
    """A target that executes runs on hosts reached by ssh.

    Options: ``hosts`` (``h1:2,h2:2``, with a slot per rank), ``port``, ``identity`` (the private
    key's file) and ``ssh_options`` (additional options of ssh).
    """

    kind: ClassVar[str] = "ssh"
    options: ClassVar[tuple[str, ...]] = ("hosts", "port", "identity", "ssh_options")

    def __init__(self, spec: TargetSpec) -> None:
        check_options(spec, self.options)
        if not spec.options.get("hosts"):
            raise SettingsError(
                f"the target {spec.name!r} needs hosts, for example: farandole targets add"
                f" {spec.name} --kind ssh --option hosts=h1:2,h2:2"
            )
        self._spec = spec
        self._hosts = parse_hosts(str(spec.options["hosts"]))
        self._busy: Counter[str] = Counter()  # slots occupied by active runs, by host

    def check(self, resources: Resources) -> None:
        slots = sum(count for _, count in self._hosts)
        if resources.ranks > slots:
            raise SettingsError(
                f"the run needs {resources.ranks} ranks, but the hosts of {self._spec.name!r} have"
                f" {slots} slots; request fewer, or add hosts"
            )
        if resources.nodes > len(self._hosts):
            raise SettingsError(
                f"the run needs {resources.nodes} nodes, but {self._spec.name!r} has"
                f" {len(self._hosts)} hosts; request fewer, or add hosts"
            )
        hosts_for(self._hosts, resources)

    def capacity(self) -> Capacity:
        slots = sum(count for _, count in self._hosts)
        return Capacity(cores=float(slots), memory=0, gpus=slots, nodes=len(self._hosts))

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        chosen = hosts_for(self._hosts, folder.spec().resources, self._busy)
        variables = {**env, HOSTS_VARIABLE: chosen}
        ticket = start_here(self._spec.name, folder, command, variables)
        self._busy.update(dict(parse_hosts(chosen)))
        return ticket._replace(data={**ticket.data, "hosts": chosen})

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        found = [presence_here(ticket) for ticket in tickets]
        present = [each for each, at in zip(tickets, found, strict=True) if at.state == "present"]
        self._busy = occupied(present)
        return found

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        end_here(ticket)

    def nodes(self, tickets: Sequence[Ticket]) -> NodeCounts:
        """Query all hosts in parallel. Hosts that ssh cannot reach count as unusable."""
        settings = settings_for({}, self._settings())
        asked = {
            host: subprocess.Popen(
                ["true"] if is_here(_name(host)) else ssh_command(host, settings, ["true"]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for host, _ in self._hosts
        }
        unusable = {host for host, process in asked.items() if process.wait()}
        running = set(occupied(tickets)) & set(asked) - unusable
        return NodeCounts(
            idle=len(asked) - len(running) - len(unusable),
            running=len(running),
            unusable=len(unusable),
        )

    def launch(self, spec: RunSpec) -> Launch:
        from farandole.jobs.targets.ssh.copies import copied

        hosts = os.environ.pop(HOSTS_VARIABLE, "") or hosts_for(self._hosts, spec.resources)
        options = self._settings()
        names = [host for host, _ in parse_hosts(hosts)]
        settings = settings_for(spec.variables, options)

        def copies(folder: RunFolder, paths: Sequence[str]) -> AbstractContextManager[None]:
            return copied(names, settings, folder, paths)

        return Launch("ssh", hosts, options, copies)

    def _settings(self) -> dict[str, Any]:
        options = self._spec.options
        found: dict[str, Any] = {}
        if options.get("port"):
            found["ssh_port"] = int(options["port"])
        if options.get("identity"):
            found["ssh_identity_file"] = str(options["identity"])
        if options.get("ssh_options"):
            found["ssh_options"] = str(options["ssh_options"])
        return found


def hosts_for(
    hosts: Sequence[tuple[str, int]], resources: Resources, busy: Mapping[str, int] | None = None
) -> str:
    """Return hosts with slots for the ranks, such as ``h1:2,h2:2``; for an elastic run, up to its
    maximum number of nodes. Pure.

    Hosts with enough free slots come first; ``busy``: the number of occupied slots by host. Raises
    SettingsError if too few hosts have a slot for each rank of a node.
    """
    need = resources.ranks_per_node
    fitting = [(host, slots) for host, slots in hosts if slots >= need]
    if len(fitting) < resources.nodes:
        raise SettingsError(
            f"{resources.nodes} hosts with {need} slots each are needed, but only {len(fitting)}"
            " have that many; request fewer ranks per node"
        )
    taken = busy or {}
    order = sorted(fitting, key=lambda each: taken.get(each[0], 0) + need > each[1])
    return ",".join(f"{_bracketed(host)}:{need}" for host, _ in order[: resources.most_nodes])


def occupied(tickets: Sequence[Ticket]) -> Counter[str]:
    """Return the number of occupied slots by host. Pure."""
    found: Counter[str] = Counter()
    for ticket in tickets:
        if hosts := ticket.data.get("hosts"):
            found.update(dict(parse_hosts(str(hosts))))
    return found


def _bracketed(host: str) -> str:
    """Return a host in the format of a list of hosts: an IPv6 address in brackets."""
    user, at, name = host.rpartition("@")
    return f"{user}{at}[{name}]" if ":" in name else host


def _name(host: str) -> str:
    return host.rpartition("@")[2]
