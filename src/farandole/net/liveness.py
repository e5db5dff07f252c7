"""Connections to other hosts. Is the host at the other end still there?

TCP tells of a process that ends, but not of a host or a network that vanishes. The kernel probes
idle connections (keepalive). While data is under way it does not: it sends that again, for 16
minutes. ``TCP_USER_TIMEOUT`` would end this earlier, but would also end a connection to a program
that does not read for a while. So we look at when the other kernel last acknowledged anything: it
does that whatever the program does.

A vanished host is noticed after 7 to 8 seconds; a link that stalls for 5 seconds and comes back is
not taken for one.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import struct
import time
from typing import Any

from farandole.errors import PeerLostError

LOST_SECONDS = 8.0
PROBE_AFTER, PROBE_EVERY, PROBES = 1, 1, 7  # seconds, and how many without an answer are the end
LOOK_SECONDS = 0.5
# TCP_RTO_MAX_MS, of Linux 6.15: the longest pause before data is sent again, in milliseconds
_RTO_MAX_MS = 44
# else each pause is twice the last one, and a link is not used for seconds after it has come back
_AGAIN_MS = 1000
# where they are in struct tcp_info, 32 bits each; the latter in milliseconds
_UNACKNOWLEDGED, _LAST_ANSWER = 24, 56
_INFO_SIZE = 64


def connected(host: str, port: int, seconds: float) -> socket.socket:
    """A connection; ``OSError`` if there is none within so many seconds."""
    # Python prepares text for names with other letters, and loads tables for that: milliseconds of
    # every start.
    name: Any = host.encode() if host.isascii() else host
    return socket.create_connection((name, port), seconds)


def reached(host: str, port: int, seconds: float) -> socket.socket:
    """The same, of a host that is known to be there: its link may come back after the 3 s of the
    kernel's patience.
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


def probe(sock: socket.socket, after: int | None = None) -> None:
    """Have the kernel end an idle connection when its other end does not answer for 8 seconds.
    ``after``: seconds of silence before it asks, if not the usual ones.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, after or PROBE_AFTER),
        (socket.TCP_KEEPINTVL, PROBE_EVERY),
        (socket.TCP_KEEPCNT, PROBES),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    with contextlib.suppress(OSError):  # an older kernel
        sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, _AGAIN_MS)


def silence(sock: socket.socket) -> tuple[bool, float]:
    """Is data under way that the other host has not acknowledged, and the seconds since it
    acknowledged anything.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    except OSError:  # closed meanwhile
        return False, math.inf
    (unacknowledged,) = struct.unpack_from("=I", info, _UNACKNOWLEDGED)
    (last_answer,) = struct.unpack_from("=I", info, _LAST_ANSWER)
    return unacknowledged > 0, last_answer / 1000


def silent(sock: socket.socket) -> bool:
    """Has the other host acknowledged nothing for 8 seconds, though data is under way to it?"""
    under_way, seconds = silence(sock)
    return under_way and seconds > LOST_SECONDS


def await_answer(sock: socket.socket, seconds: float) -> None:
    """Until something has come, or the end. Raises TimeoutError if nothing does within ``seconds``,
    or if the other host acknowledges nothing any more.
    """
    waiter = select.poll()
    waiter.register(sock, select.POLLIN)
    deadline = time.monotonic() + seconds
    while not waiter.poll(LOOK_SECONDS * 1000):
        if silent(sock):
            raise TimeoutError(f"it {PeerLostError.SILENT}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"it says nothing for {seconds:g} s")
