"""Several hosts on one machine: network namespaces joined by veth pairs, taken down again whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def needed() -> None:
    """Skip the test where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("the command ip (iproute2) is not installed")
    probe = subprocess.run(["ip", "netns", "add", f"far{os.getpid()}p"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"network namespaces cannot be made here: {probe.stderr.decode().strip()}")
    _ip("netns", "del", f"far{os.getpid()}p")


@contextmanager
def two_hosts() -> Iterator[list[tuple[str, str]]]:
    """(namespace, address) of two hosts that reach each other, and nothing else."""
    needed()
    names = [f"far{os.getpid()}{letter}" for letter in "ab"]
    addresses = ["10.99.0.1", "10.99.0.2"]
    ends = [f"fv{os.getpid() % 100000}{letter}" for letter in "ab"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, addresses, strict=True):
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, addresses, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", ends[0]], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
