"""Horovod's options of elastic jobs as Farandole's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.errors import SettingsError


def settings(
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    host_discovery_script: str | None = None,
    slots: int | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return Farandole's settings for Horovod's options of an elastic job, without the options that
    are None.

    ``min_num_proc``, ``max_num_proc``: the minimum and maximum number of processes.
    ``host_discovery_script``: a program that prints the hosts. ``slots``: processes per host.
    ``elastic_timeout``: seconds to wait for slots. ``reset_limit``: the maximum number of
    membership changes. ``cooldown_range``: the minimum and maximum seconds before a failed host is
    used again.

    Raises SettingsError for values that Horovod refuses, too.
    """
    if reset_limit == 0:
        raise SettingsError(
            "reset_limit=0 allows no change of the job's processes. For a job of fixed size, leave"
            " out min_num_proc, max_num_proc and the host discovery script"
        )
    for name, value in (("min_num_proc", min_num_proc), ("max_num_proc", max_num_proc)):
        if value is not None and value < 1:
            raise SettingsError(f"{name}={value} must be >= 1: it is a number of processes")
    if cooldown_range is not None and len(cooldown_range) != 2:
        raise SettingsError(
            f"cooldown_range={cooldown_range!r} must be two numbers of seconds, such as (10, 100)"
        )
    found = {
        "min_np": min_num_proc,
        "max_np": max_num_proc,
        "host_discovery_script": host_discovery_script,
        "slots_per_host": slots,
        "elastic_timeout": None if elastic_timeout is None else float(elastic_timeout),
        "reset_limit": reset_limit,
        "cooldown_range": None
        if cooldown_range is None
        else ":".join(f"{seconds:g}" for seconds in cooldown_range),
    }
    return {name: value for name, value in found.items() if value is not None}
