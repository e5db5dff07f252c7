"""The target ``ssh``: ranks on hosts that ssh reaches; the runner is on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from farandole.errors import SettingsError
from farandole.job.launch.plan import parse_hosts
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.targets.contract import Capacity, Launch, Presence, TargetSpec, Ticket
from farandole.jobs.targets.local import check_options, end_here, presence_here, start_here


class SshTarget:
    """Hosts that ssh reaches. Options: ``hosts`` (``h1:2,h2:2``, a slot per rank), ``port``,
    ``identity`` (a file with the private key) and ``ssh_options`` (further options of ssh).
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

    def check(self, resources: Resources) -> None:
        slots = sum(count for _, count in self._hosts)
        if resources.ranks > slots:
            raise SettingsError(
                f"{resources.ranks} ranks are asked for, and the hosts of {self._spec.name!r} have"
                f" {slots} slots; ask for fewer, or add hosts"
            )
        if resources.nodes > len(self._hosts):
            raise SettingsError(
                f"{resources.nodes} nodes are asked for, and {self._spec.name!r} has"
                f" {len(self._hosts)} hosts; ask for fewer, or add hosts"
            )

    def capacity(self) -> Capacity:
        slots = sum(count for _, count in self._hosts)
        return Capacity(cores=float(slots), memory=0, gpus=slots, nodes=len(self._hosts))

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        return start_here(self._spec.name, folder, command, env)

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        return [presence_here(ticket) for ticket in tickets]

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        end_here(ticket)

    def launch(self, spec: RunSpec) -> Launch:
        return Launch("ssh", hosts_for(self._hosts, spec.resources), self._settings())

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


def hosts_for(hosts: Sequence[tuple[str, int]], resources: Resources) -> str:
    """Return hosts with slots for the ranks, such as ``h1:2,h2:2``. Pure.

    Raises SettingsError if too few hosts have a slot for each rank of a node.
    """
    fitting = [host for host, slots in hosts if slots >= resources.ranks_per_node]
    if len(fitting) < resources.nodes:
        raise SettingsError(
            f"{resources.nodes} hosts with {resources.ranks_per_node} slots each are needed, and"
            f" {len(fitting)} have as many; ask for fewer ranks per node"
        )
    return ",".join(f"{host}:{resources.ranks_per_node}" for host in fitting[: resources.nodes])
