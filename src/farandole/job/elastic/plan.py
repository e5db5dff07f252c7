"""The plan of an elastic job."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from farandole.job.elastic.discovery.contract import HostDiscovery
    from farandole.job.elastic.options import ElasticOptions


class ElasticPlan(NamedTuple):
    """The options of an elastic job, and the source of its hosts."""

    options: ElasticOptions
    discovery: HostDiscovery
