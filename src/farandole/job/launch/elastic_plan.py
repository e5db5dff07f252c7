"""The plan of an elastic job, from its settings and hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.launch.plan import parse_hosts

if TYPE_CHECKING:
    from farandole.job.elastic.discovery import Source
    from farandole.job.elastic.plan import ElasticPlan

MOST_RANKS = 1 << 20  # of an elastic job without max_np


def is_elastic(settings: Settings) -> bool:
    """Return whether the ranks of a job with ``settings`` come and go."""
    return bool(settings.min_np or settings.max_np or settings.host_discovery_script)


def plan_of(
    np: int | None, settings: Settings, hosts: str | None, source: Source = None
) -> ElasticPlan | None:
    """Return the plan of an elastic job; None for a job of fixed size.

    ``np``: ranks at the start; None: ``min_np``. ``hosts``: hosts with slots (``h1:2,h2:4``); None:
    this machine. ``source``: a discovery, or a function that returns the hosts. Raises
    SettingsError for bounds that contradict each other, or hosts from two sources.
    """
    if source is None and not is_elastic(settings):
        return None
    # Imported here because most jobs have a fixed size.
    from farandole.job.elastic.discovery import discovery_of
    from farandole.job.elastic.options import options_of
    from farandole.job.elastic.plan import ElasticPlan

    options = options_of(np, settings)
    if settings.preemption_notice:
        from farandole.job.elastic.notices.sources import parse_sources

        parse_sources(settings.preemption_notice)  # raises before anything is started
    named = settings.host_discovery_script
    if hosts and (named or source is not None):
        raise SettingsError(
            f"hosts={hosts!r} and {named or 'a discovery'} are mutually exclusive: give --hosts, or"
            " --host-discovery-script"
        )
    fixed = parse_hosts(hosts) if hosts else [("localhost", options.max_np or options.np)]
    return ElasticPlan(options, discovery_of(settings, dict(fixed), source))
