"""Properties of this machine for ``-np auto`` and ``farandole env``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from farandole.base.host import content, control_groups

GIB = 1 << 30
UNLIMITED = 1 << 62  # bytes: above any machine's memory
FEW = 4  # cores: up to this number, each has a rank


class Choice(NamedTuple):
    np: int
    why: str


def ranks(cores: int, gpus: int, memory: int) -> Choice:
    """Return the suitable number of ranks for a machine's usable cores, visible GPUs and free
    memory in bytes.

    One rank per GPU. Without GPUs, one per core for up to four cores; beyond that, one per two
    cores, so that gradients can be exchanged during the backward pass. Each rank has at least 1
    GiB.
    """
    if gpus:
        return Choice(gpus, f"one for each of {gpus} GPUs" if gpus > 1 else "there is one GPU")
    wanted = cores if cores <= FEW else max(FEW, cores // 2)
    fitting = max(1, memory // GIB)
    if fitting < wanted:
        return Choice(
            fitting, f"{memory / GIB:.1f} GiB of memory are free, and each rank needs about one"
        )
    if cores <= FEW:
        return Choice(
            wanted,
            f"one for each of {cores} usable cores" if cores > 1 else "there is one usable core",
        )
    return Choice(
        wanted,
        f"{cores} usable cores, two per rank: one computes while the other exchanges gradients",
    )


def visible_gpus(env: Mapping[str, str], devices: str = "/dev") -> int:
    """Return the number of NVIDIA GPUs that are visible to programs."""
    try:
        there = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir(devices))
    except OSError:
        there = 0
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    named = [name.strip() for name in visible.split(",")]
    # An empty name or -1 hides the following ones.
    allowed = next((place for place, name in enumerate(named) if name in ("", "-1")), len(named))
    return min(there, allowed)


class Memory(NamedTuple):
    """The system's memory in bytes."""

    total: int
    free: int  # available to new processes without swapping


def memory(path: str = "/proc/meminfo") -> Memory:
    """Return the kernel's values, which are in KiB."""
    amounts = dict(
        re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", content(path), re.MULTILINE)
    )
    return Memory(int(amounts.get("MemTotal", 0)) << 10, int(amounts.get("MemAvailable", 0)) << 10)


def free_memory() -> int:
    """Return the bytes available to new processes: the system's free memory, within the limits
    of the control groups.
    """
    return min(memory().free or UNLIMITED, memory_limit())  # 0: unknown


def memory_limit(mounts: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> int:
    """Return the memory limit of this process's control groups (container, batch job), in bytes."""
    files = {1: "memory.limit_in_bytes", 2: "memory.max"}
    tops = (mounts, 2), (f"{mounts}/memory", 1)  # a container's
    found = [*tops, *control_groups("memory", mounts, groups)]
    texts = [content(f"{folder}/{files[version]}").strip() for folder, version in found]
    return min([UNLIMITED, *(int(text) for text in texts if text.isdigit())])
