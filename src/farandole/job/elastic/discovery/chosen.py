"""The choice of a job's discovery by its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farandole.job.config import Settings
from farandole.job.elastic.discovery.contract import FixedHosts, HostDiscovery
from farandole.job.elastic.discovery.file import FileDiscovery
from farandole.job.elastic.discovery.function import Found, FunctionDiscovery
from farandole.job.elastic.discovery.script import ScriptDiscovery
from farandole.job.elastic.discovery.slurm import SlurmDiscovery

Source = HostDiscovery | Callable[[], Found] | None


def discovery_of(
    settings: Settings, hosts: Mapping[str, int], source: Source = None
) -> HostDiscovery:
    """Return the discovery of an elastic job: ``source`` (a discovery or a function), else the one
    that ``--host-discovery-script`` names, else the given ``hosts`` (slots by host), which do not
    change.

    Raises SettingsError for ``--host-discovery-script slurm`` outside a Slurm job.
    """
    slots = settings.slots_per_host or None
    if isinstance(source, HostDiscovery):
        return source
    if source is not None:
        return FunctionDiscovery(source, slots)
    named = settings.host_discovery_script
    if named == "slurm":
        return SlurmDiscovery(slots=slots)
    if named.startswith("file:"):
        return FileDiscovery(named.removeprefix("file:"), slots)
    return ScriptDiscovery(named, slots) if named else FixedHosts(hosts)
