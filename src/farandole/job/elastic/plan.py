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

    def again(self, lost: str = "") -> ElasticPlan:
        """Return the plan of a restart of all ranks: it starts on the available slots, at least
        ``min_np``, without the ``lost`` host.
        """
        # Imported here because most jobs have a fixed size.
        from farandole.job.elastic.discovery.contract import reopened

        options = self.options._replace(np=self.options.min_np)
        return ElasticPlan(options, reopened(self.discovery, lost))
