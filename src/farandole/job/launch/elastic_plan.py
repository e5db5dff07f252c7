"""The plan of an elastic job, from its settings and hosts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from farandole.base.optional import require_file_system
from farandole.errors import SettingsError
from farandole.job.config import Settings
from farandole.job.launch.plan import parse_hosts

if TYPE_CHECKING:
    from farandole.job.elastic.discovery import Source
    from farandole.job.elastic.plan import ElasticPlan

MOST_RANKS = 1 << 20  # of an elastic job without max_np


def is_elastic(settings: Settings) -> bool:
    """Return whether a job with ``settings`` is elastic."""
    return bool(settings.min_np or settings.max_np or settings.host_discovery_script)


def plan_of(
    np: int | None, settings: Settings, hosts: str | None, source: Source = None
) -> ElasticPlan | None:
    """Return the plan of an elastic job; None for a job of a fixed size.

    ``np``: ranks at the start; None: ``min_np``. ``hosts``: hosts with slots (``h1:2,h2:4``); None:
    this machine. ``source``: a discovery, or a function that returns the hosts. Raises
    SettingsError for bounds that contradict each other, hosts from two sources, a folder of commits
    that cannot be used, or settings that would have no effect in a job of a fixed size.
    """
    _check_commit_dir(settings.commit_dir)
    if source is None and not is_elastic(settings):
        _refuse_without_effect(settings)
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
            f"hosts={hosts!r} and {named or 'a discovery'} are mutually exclusive. Use only one of"
            " --hosts and --host-discovery-script"
        )
    fixed = parse_hosts(hosts) if hosts else [("localhost", options.max_np or options.np)]
    return ElasticPlan(options, discovery_of(settings, dict(fixed), source))


def _refuse_without_effect(settings: Settings) -> None:
    # Otherwise users would notice only at the loss of a host that the setting had no effect.
    for name, value in (
        ("--preemption-notice", settings.preemption_notice),
        ("--slurm-requeue", settings.slurm_requeue),
        ("--leave-out-stragglers", settings.leave_out_stragglers),
    ):
        if value:
            raise SettingsError(
                f"{name} has no effect in a job of a fixed size, which cannot continue without a"
                " host. Make the job elastic with --min-np, or remove the flag"
            )


def _check_commit_dir(path: str) -> None:
    # Otherwise each rank would fail later.
    protocol, separator, _ = path.partition("://")
    if not separator or protocol == "file":
        local = os.path.expanduser(path.removeprefix("file://"))
        if os.path.isfile(local):
            raise SettingsError(f"--commit-dir {path} is a file. Use a folder")
        return
    try:
        require_file_system(path, f"--commit-dir {path}")
    except ImportError as error:
        raise SettingsError(f"{error}. The hosts of the ranks need it, too") from None
    except ValueError:
        raise SettingsError(
            f"commit_dir={path!r} has a protocol that fsspec does not know: {protocol}. Use a"
            " path, or a URL such as s3://bucket/run7 (--commit-dir)"
        ) from None
