"""Is the host at the other end of a connection still there?

TCP tells of a process that ends, but not of a host or a network that vanishes. The kernel probes idle connections
(keepalive). While data is under way it does not: it sends that again, for 16 minutes. ``TCP_USER_TIMEOUT`` would end
this earlier, but would also end a connection to a program that does not read for a while. So we look at when the other
kernel last acknowledged anything: it does that whatever the program does.
"""

from __future__ import annotations

import socket
import struct

LOST_SECONDS = 20.0
PROBE_AFTER, PROBE_EVERY, PROBES = 10, 5, 2  # seconds, and how many without an answer are the end: 20 s in all
_UNACKNOWLEDGED, _LAST_ANSWER = 24, 56  # where they are in struct tcp_info, 32 bits each; the latter in milliseconds
_INFO_SIZE = 64


def probe(sock: socket.socket) -> None:
    """Have the kernel end an idle connection when its other end does not answer for 20 seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, PROBE_AFTER), (socket.TCP_KEEPINTVL, PROBE_EVERY), (socket.TCP_KEEPCNT, PROBES)
    ):  # fmt: skip
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def silent(sock: socket.socket) -> bool:
    """Has the other host acknowledged nothing for 20 seconds, though data is under way to it?"""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    except OSError:  # closed meanwhile
        return False
    (unacknowledged,) = struct.unpack_from("=I", info, _UNACKNOWLEDGED)
    (last_answer,) = struct.unpack_from("=I", info, _LAST_ANSWER)
    return bool(unacknowledged) and last_answer > LOST_SECONDS * 1000
