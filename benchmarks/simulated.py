"""Simulated ranks: boards of many ranks, and clients of a store, in one process on one machine.

One thread does the work of all ranks, one rank after the other, so that each rank is timed alone,
without competition for the cores. The duration of a round on real hosts follows from these times:
the work of the ranks on the longest path of the tree, plus the network's latency between them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from farandole.core.transports import tcp
from farandole.core.transports.tcp import forwarding, overlay
from farandole.core.transports.tcp.board import TcpBoard
from farandole.core.transports.tcp.link import TcpLink
from farandole.errors import HorovodInternalError
from farandole.net.handshake import Session, new_secret
from farandole.net.store import StoreClient, StoreServer
from farandole.net.store.frames import GATHER, packed

MESSAGE = bytes(17)  # bytes of a rank's post of one known collective


class Round(NamedTuple):
    """The work of one round, in seconds. ``path``: the work along the longest path through the
    ranks; ``steps``: the number of network latencies to add.
    """

    ranks: int
    connections: int  # of the busiest rank
    path: float
    steps: int


@contextlib.contextmanager
def boards(size: int, *, direct: bool) -> Iterator[list[TcpBoard]]:
    """Provide the boards of ``size`` ranks over TCP on the loopback interface; ``direct``: fully
    connected.
    """
    few, pause = overlay.DIRECT, forwarding.RELAY_SECONDS
    overlay.DIRECT = size if direct else 1
    forwarding.RELAY_SECONDS = 3600.0  # ranks do not compute here
    made: list[TcpBoard] = []
    try:
        places = [overlay.overlay(rank, size) for rank in range(size)]
        sessions: list[dict[int, Session]] = [{} for _ in places]
        for place in places:
            for peer in place.reachable:
                if peer < place.rank:
                    sessions[place.rank][peer], sessions[peer][place.rank] = _pair()
        for place in places:
            row = [sessions[place.rank].get(peer) for peer in range(size)]
            made.append(TcpBoard(place, row))
        yield made
    finally:
        overlay.DIRECT, forwarding.RELAY_SECONDS = few, pause
        for each in made:
            each.close()


def _pair() -> tuple[Session, Session]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for sock in (one, other):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
    return Session(one, b"1" * 32, b"2" * 32), Session(other, b"2" * 32, b"1" * 32)


def measure(size: int, *, direct: bool, repetitions: int = 9) -> Round:
    """Measure rounds in which all ranks post the same calls, as in a training step. Each rank's
    time is its minimum, because other programs only add to it.
    """
    with boards(size, direct=direct) as made:
        _round(made)  # the first round grows buffers
        times = [_round(made) for _ in range(repetitions)]
        widest = max(len(each._peers) for each in made)
        up, down = (
            [min(of_rank) for of_rank in zip(*half, strict=True)]
            for half in zip(*times, strict=True)
        )
        if direct:
            return Round(size, widest, max(map(sum, zip(up, down, strict=True))), 1)
        return Round(size, widest, *_longest(up, down))


def _round(made: Sequence[TcpBoard]) -> tuple[list[float], list[float]]:
    """Return each rank's seconds. First all ranks post; then, in a tree, messages go up from the
    leaves and back down.
    """
    size = len(made)
    up, down = [0.0] * size, [0.0] * size
    for passes in range(2 if made[0]._forwarder.neighbours else 1):
        for rank in reversed(range(size)):
            start = time.perf_counter()
            made[rank].pump() if passes else made[rank].post(MESSAGE)
            up[rank] += time.perf_counter() - start
    for rank in range(size):
        start = time.perf_counter()
        messages = made[rank].collect()
        down[rank] = time.perf_counter() - start
        if messages != [MESSAGE] * size:
            raise AssertionError(f"rank {rank} did not get all messages of a round")
    return up, down


def _longest(up: list[float], down: list[float]) -> tuple[float, int]:
    """Return the work along the longest path from a leaf to the root and back to a leaf, and its
    number of messages.
    """
    size = len(up)
    above = [overlay.overlay(rank, size).subtrees for rank in range(size)]
    arrived = list(up)
    for rank in range(size - 1, 0, -1):
        parent = above[rank][-2].start
        arrived[parent] = max(arrived[parent], up[parent] + arrived[rank])
    read = [0.0] * size
    for rank in range(size):
        parent = above[rank][-2].start if rank else -1
        read[rank] = down[rank] + (read[parent] if rank else arrived[0])
    return max(read), 2 * (max(map(len, above)) - 1)


class Meeting(NamedTuple):
    """The seconds of a store for ``ranks`` clients: ``connect`` until all are connected, and
    ``exchange`` per exchange, in which every client writes a value and reads all values.
    """

    ranks: int
    connect: float
    exchange: float


_SERVE = """
import sys
from farandole.net.store import StoreServer
store = StoreServer(sys.argv[1])
print(store.address, flush=True)
sys.stdin.read()
"""


def meeting(size: int) -> Meeting:
    """Measure a store in a separate process with ``size`` clients in this one."""
    secret = new_secret()
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE, secret],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    clients: list[StoreClient] = []
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        start = time.perf_counter()
        clients += (StoreClient(address, secret) for _ in range(size))
        connected = time.perf_counter()
        for rank, client in enumerate(clients):
            client.set(f"share/near/{rank}", b"[%d, %d]" % (rank, rank + 1))
        # on hosts of their own, they
        answers = [client._ask(GATHER, f"{size} share/near", 60.0) for client in clients]
        seconds = time.perf_counter() - connected  # would take these apart at the same time
        if {len(answer or b"") for answer in answers} != {
            len(packed([b"[%d, %d]" % (i, i + 1) for i in range(size)]))
        }:
            raise HorovodInternalError("a value was lost")
        return Meeting(size, connected - start, seconds)
    finally:
        for client in clients:
            client.close()
        server.kill()
        server.wait()
        for pipe in (server.stdin, server.stdout):
            if pipe is not None:
                pipe.close()


def connection(size: int) -> float:
    """Return the seconds of work at both ends for one connection of a mesh of ``size`` ranks, which
    are threads.
    """
    secret = new_secret()
    store = StoreServer(secret)
    clients = [StoreClient(store.address, secret) for _ in range(size)]
    links: list[TcpLink] = []
    start = time.process_time()
    try:
        with ThreadPoolExecutor(size) as pool:
            links += pool.map(
                lambda rank: tcp.connect(rank, size, secret, "mesh", clients[rank], 60.0),
                range(size),
            )
        edges = size * (size - 1) / 2 + sum(len(link.board._peers) for link in links) / 2
        return (time.process_time() - start) / edges
    finally:
        for link in links:
            link.close()
        for client in clients:
            client.close()
        store.close()
