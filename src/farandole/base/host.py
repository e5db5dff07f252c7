"""Properties of this host from the kernel: cores, control groups and namespaces."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator


def cores() -> int:
    """Return the number of cores that affinity and control groups allow this process, at least
    1.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, int(min(allowed, quota())))


def quota(mounts: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> float:
    """Return the CPU quota of this process's control groups in cores; ``inf`` without a limit."""
    limits = [math.inf]
    for folder, version in control_groups("cpu", mounts, groups):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        limits.append(_limit(" ".join(content(f"{folder}/{name}") for name in names)))
    return min(limits)


def control_groups(controller: str, mounts: str, groups: str) -> Iterator[tuple[str, int]]:
    """Yield the folders of this process's control groups and of their parents, each with its
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
    """Parse a quota in microseconds of time per period ("200000 100000"); "max" or -1 is no
    limit.
    """
    words = text.split()
    return (
        int(words[0]) / int(words[1])
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit()
        else math.inf
    )


def content(path: str) -> str:
    """Return the text of a system file; empty if it does not exist or is not readable."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def boot_id() -> str:
    """Return the id of the running kernel; empty if it cannot be read."""
    return content("/proc/sys/kernel/random/boot_id").strip()


def namespace(kind: str) -> str:
    """Return the id of the running kernel plus this process's namespace of a ``kind`` ("net",
    "pid", "time").

    Processes that share both have equal ids. Empty if the ids cannot be read.
    """
    boot = boot_id()
    try:
        return boot and boot + os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # a kernel without such namespaces
        return boot


def clock_name() -> str:
    """Return the name of this process's monotonic clock; processes that share it return the
    same.
    """
    return namespace("time")
