"""This host as the kernel shows it: cores, control groups, and what processes share."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator


def cores() -> int:
    """How many cores this process may use, by its affinity and by the limits of its control
    groups.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, int(min(allowed, quota())))


def quota(mounts: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> float:
    """How many cores' worth of time the control groups of this process give it; without a limit:
    inf.
    """
    limits = [math.inf]
    for folder, version in control_groups("cpu", mounts, groups):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        limits.append(_limit(" ".join(content(f"{folder}/{name}") for name in names)))
    return min(limits)


def control_groups(controller: str, mounts: str, groups: str) -> Iterator[tuple[str, int]]:
    """The folders of this process's control groups, those above them included, each with its
    version.
    """
    for line in content(groups).splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        parts = [part for part in path.split("/") if part]
        for top in (
            (f"{mounts}/{names}", f"{mounts}/{controller}")
            if names
            else (mounts, f"{mounts}/unified")
        ):
            if os.path.isdir(top):
                yield from (
                    ("/".join([top, *parts[:depth]]), 1 if names else 2)
                    for depth in range(len(parts) + 1)
                )


def _limit(text: str) -> float:
    """Microseconds of time in a period, as "200000 100000"; "max" or -1 is no limit."""
    words = text.split()
    return (
        int(words[0]) / int(words[1])
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit()
        else math.inf
    )


def content(path: str) -> str:
    """The text of a file of the system; empty if there is none, or none that may be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def boot_id() -> str:
    """Return the id of the running kernel; empty if it cannot be read."""
    return content("/proc/sys/kernel/random/boot_id").strip()


def namespace(kind: str) -> str:
    """Return the id of the running kernel and of this process's namespace of a ``kind`` ("net",
    "pid", "time"): equal for processes that share both; empty if that cannot be read.
    """
    boot = boot_id()
    try:
        return boot and boot + os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # a kernel without such namespaces
        return boot


def clock_name() -> str:
    """Return the name of this process's monotonic clock: equal for processes that share it."""
    return namespace("time")
