"""Connections to other hosts, with detection of vanished hosts.

TCP reports a process that ends, but not a host or a network that vanishes. The kernel probes idle
connections (keepalive), but while data is in flight it retransmits for 16 minutes instead.
``TCP_USER_TIMEOUT`` would end this earlier, but would also end a connection to a program that does
not read for a while. This module therefore checks when the other kernel last acknowledged data,
regardless of the program's activity.

A vanished host is detected after 7 to 8 seconds; a link that stalls for 5 seconds and recovers is
not reported.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from farandole.errors import PeerLostError

LOST_SECONDS = 8.0
# seconds, and the number of unanswered probes that ends a connection
PROBE_AFTER, PROBE_EVERY, PROBES = 1, 1, 7
LOOK_SECONDS = 0.5
# Seconds in which the kernel tries a connection twice (the second time after 1 s).
SURVEY_SECONDS = 2.5
# A router may report that a host is gone.
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
# TCP_RTO_MAX_MS (Linux 6.15): the longest retransmission interval, in milliseconds.
_RTO_MAX_MS = 44
# Otherwise each interval is twice the last one, and a recovered link stays unused for seconds.
_AGAIN_MS = 1000
# Offsets in struct tcp_info, 32 bits each; the latter value is in milliseconds.
_UNACKNOWLEDGED, _LAST_ANSWER = 24, 56
_INFO_SIZE = 64


def connected(host: str, port: int, seconds: float) -> socket.socket:
    """Return a connection. Raises ``OSError`` if there is none within ``seconds``."""
    # As bytes, because Python loads IDNA tables for text, which takes milliseconds at each start.
    name: Any = host.encode() if host.isascii() else host
    return socket.create_connection((name, port), seconds)


def reached(host: str, port: int, seconds: float) -> socket.socket:
    """Return a connection to a host that is known to exist.

    Retries while the link is down: the kernel itself gives up after 3 s.
    """
    began = time.monotonic()
    while True:
        try:
            return connected(host, port, max(0.1, began + seconds - time.monotonic()))
        except OSError as error:
            if error.errno != errno.EHOSTUNREACH or time.monotonic() > began + min(
                seconds, LOST_SECONDS
            ):
                raise
        time.sleep(LOOK_SECONDS)


def unanswered(
    addresses: Sequence[tuple[str, int]], seconds: float = SURVEY_SECONDS
) -> set[tuple[str, int]]:
    """Return the addresses (numeric host and port) that do not answer within ``seconds``. A refused
    connection is an answer.
    """
    waiter, waiting = select.poll(), dict[int, tuple[socket.socket, tuple[str, int]]]()
    found = set[tuple[str, int]]()
    try:
        for host, port in addresses:
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sock.setblocking(False)
            waiting[sock.fileno()] = sock, (host, port)
            if sock.connect_ex((host, port)) in UNREACHABLE:
                found.add((host, port))
            waiter.register(sock, select.POLLOUT)
        deadline = time.monotonic() + seconds
        silent = set(waiting)
        while silent and (rest := deadline - time.monotonic()) > 0:
            for fd, _ in waiter.poll(rest * 1000):
                sock, address = waiting[fd]
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in UNREACHABLE:
                    found.add(address)
                waiter.unregister(fd)
                silent.discard(fd)
        return found | {waiting[fd][1] for fd in silent}
    finally:
        for sock, _ in waiting.values():
            sock.close()


def probe(sock: socket.socket, after: int | None = None) -> None:
    """Make the kernel end an idle connection whose peer does not respond for 8 seconds.

    ``after`` is the silence in seconds before the first probe, if not the default.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, after or PROBE_AFTER),
        (socket.TCP_KEEPINTVL, PROBE_EVERY),
        (socket.TCP_KEEPCNT, PROBES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    with contextlib.suppress(OSError):  # not supported by an older kernel
        sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, _AGAIN_MS)


def silence(sock: socket.socket) -> tuple[bool, float]:
    """Return whether unacknowledged data is in flight, and the seconds since the last
    acknowledgement.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    except OSError:  # the socket was closed
        return False, math.inf
    (unacknowledged,) = struct.unpack_from("=I", info, _UNACKNOWLEDGED)
    (last_answer,) = struct.unpack_from("=I", info, _LAST_ANSWER)
    return unacknowledged > 0, last_answer / 1000


def silent(sock: socket.socket) -> bool:
    """Return whether data is in flight that the peer's host has not acknowledged for 8 seconds."""
    under_way, seconds = silence(sock)
    return under_way and seconds > LOST_SECONDS


def await_answer(sock: socket.socket, seconds: float) -> None:
    """Wait until data or the end of the connection arrives.

    Raises TimeoutError if neither arrives within ``seconds``, or if the peer's host stops
    acknowledging.
    """
    waiter = select.poll()
    waiter.register(sock, select.POLLIN)
    deadline = time.monotonic() + seconds
    while not waiter.poll(LOOK_SECONDS * 1000):
        if silent(sock):
            raise TimeoutError(f"it {PeerLostError.SILENT}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no data for {seconds:g} s")
