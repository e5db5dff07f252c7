"""The program of ``farandole hosts`` on each host: it reports the host's properties and
measures the connection to other hosts.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from farandole.base.host import content, cores
from farandole.errors import (
    AuthenticationError,
    HorovodInternalError,
    RendezvousError,
    SettingsError,
)
from farandole.job.launch.agents.contact import likeliest_first, no_contact
from farandole.net.interfaces import EVERYWHERE, chosen, interfaces, listening
from farandole.net.store import StoreClient

PINGS = 50
SECONDS = 0.5  # seconds of sending for the bandwidth
PIECE = bytes(1 << 20)
CONTACT = 2.0  # seconds for an address to respond
SLOW = 30.0  # seconds for a message, also over a slow link that a job uses
BACK = 5.0  # seconds for the driver's address to respond


def exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return data


def serve(door: socket.socket, token: bytes) -> None:
    """Answer peers that know the token: echo pings, then count bytes."""
    while True:
        sock, _ = door.accept()
        with sock, contextlib.suppress(OSError):
            sock.settimeout(CONTACT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if exactly(sock, len(token)) != token:
                continue
            sock.settimeout(SLOW)
            for _ in range(PINGS + 1):
                sock.sendall(exactly(sock, 1))
            buffer, total = bytearray(1 << 20), 0
            while got := sock.recv_into(buffer):
                total += got
            sock.sendall(b"%d\n" % total)


def measure(addresses: list[str], port: int, token: bytes) -> dict[str, Any]:
    """Measure the first address that responds: its latency (seconds, one way) and bandwidth
    (bytes per second).
    """
    trouble = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=CONTACT) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(SLOW)
                sock.sendall(token)
                return {"address": address, **_measured(sock)}
        except OSError as error:
            trouble.append(f"{address}: {error}")
    return {"error": "; ".join(trouble) or "it has no address"}


def _measured(sock: socket.socket) -> dict[str, float]:
    turns = []
    for _ in range(PINGS + 1):
        began = time.perf_counter()
        sock.sendall(b".")
        exactly(sock, 1)
        turns.append(time.perf_counter() - began)
    began = time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        sock.sendall(PIECE)
    sock.shutdown(socket.SHUT_WR)
    total = int(sock.makefile().readline())
    return {
        "latency": sorted(turns[1:])[PINGS // 2] / 2,
        "bandwidth": total / (time.perf_counter() - began),
    }


def no_way_back(addresses: list[str], secret: str) -> str:
    """Return why no job could start here: no address of the driver responds. Empty if one does,
    or if there are no addresses.
    """
    trouble = []
    for address in likeliest_first(addresses):
        try:
            StoreClient(address, secret, BACK).close()
            return ""
        except (AuthenticationError, HorovodInternalError, RendezvousError, OSError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            trouble.append(
                f"{address} ({cause.strerror or cause if isinstance(cause, OSError) else cause})"
            )
    if not trouble:
        return ""
    if all(interface.loopback for interface in interfaces()):
        return no_contact(addresses)
    return (
        f"it cannot reach the driver at {' or '.join(trouble)}: allow the return path in the"
        " firewall (the system chooses the driver's ports), or name other interfaces with"
        " --network-interfaces"
    )


def facts(odd: Mapping[str, str], names: str) -> dict[str, Any]:
    """Return the properties of this host.

    ``odd`` maps the driver's packages that differ here to their location ("" if missing). ``names``
    are the interfaces for the job, as set. Raises SettingsError for an interface that does not
    exist.
    """
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "farandole": odd.get("farandole"),
        "numpy": _version("numpy"),
        "cores": cores(),
        "memory": _memory(),
        "gpus": _gpus(),
        "addresses": [each.address for each in chosen(interfaces(), names)],
    }


def _version(package: str) -> str:
    """Return a package's version; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _memory() -> int:
    """Return the host's memory in bytes."""
    found = [
        line.split()[1]
        for line in content("/proc/meminfo").splitlines()
        if line.startswith("MemTotal")
    ]
    return int(found[0]) << 10 if found else 0


def _gpus() -> list[str]:
    """Return the names of the GPUs."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        []
        if done.returncode
        else [line.strip() for line in done.stdout.splitlines() if line.strip()]
    )


def main(
    instructions: Mapping[str, Any],
    odd: Mapping[str, str],
    frame: Callable[[], bytes],
    say: Callable[..., None],
) -> int:
    """Report this host's properties, then take the measurements that each ``frame`` requests.

    ``frame`` ends the process when the driver is lost.
    """
    token = instructions["token"]
    try:
        found = facts(odd, instructions["interfaces"])
        trouble = no_way_back(instructions["addresses"], instructions["secret"])
    except SettingsError as error:
        trouble = str(error)
    if trouble:
        say(failed=trouble)
        return 1
    door = listening(EVERYWHERE, backlog=16)
    threading.Thread(target=serve, args=(door, token.encode()), daemon=True).start()
    say(facts=found, port=door.getsockname()[1])
    while True:
        asked = json.loads(frame())
        say(measured=measure(asked["addresses"], asked["port"], token.encode()))
