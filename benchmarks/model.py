"""The predicted cost of a job on more hosts than were measured: formulas with constants from
measured points. Pure.

Times in seconds, sizes in bytes, rates in bits per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.core.transports.tcp import overlay

HOST = 8  # ranks of a host, in predictions
LATENCY = 100e-6  # between programs on two hosts: Ethernet and TCP without special drivers
GRADIENTS = 100e6  # bytes
RATES = (1e9, 10e9, 100e9)
RANKS = (8, 64, 512, 1024, 4096, 27_000)
PAYLOAD = 1448 / 1514  # of an Ethernet frame with TCP
# of ranks over the store, while they start: three about shared memory, one about addresses
EXCHANGES = 4
MESSAGE_BYTES = 40  # sent by a rank in each of them


class Constants(NamedTuple):
    message: float  # work for a message of a board, at one end
    rank: float  # work of a rank in a round, for each rank
    meet: float  # work of store and client until a client is connected
    exchange: float  # work of store and client for an exchange of one rank
    value: float  # the same, for each value that it reads
    connection: float  # work for one connection, at both ends
    step: float  # of a ring: latency and work, as measured on these hosts
    link: float  # fraction of the link's rate that a ring uses
    copying: float  # bytes per second at which one rank sends, receives and adds up


def depth(ranks: int) -> int:
    """Return the steps from the root of a board's tree to the farthest rank; 0 without a tree."""
    return (
        max(
            len(overlay.overlay(rank, ranks).subtrees)
            for rank in range(max(0, ranks - 1000), ranks)
        )
        - 1
    )


def fitted(points: Mapping[str, Any]) -> Constants:
    """Return the constants fitted to ``points``, the content of docs/scaling.json."""
    trees = [point for point in points["rounds"] if point["steps"] > 1]
    work = [[point["steps"] * (overlay.FANOUT + 1), point["ranks"]] for point in trees]
    (message, rank), *_ = np.linalg.lstsq(
        np.array(work, float), np.array([point["path"] for point in trees]), rcond=None
    )
    meetings = points["meetings"]
    total = sum(point["ranks"] for point in meetings)
    exchange, value = _exchange(meetings)
    step, link = _ring([point for point in points["allreduce"] if point["rate"]])
    free = [point for point in points["allreduce"] if not point["rate"]]
    return Constants(
        message=float(message),
        rank=max(0.0, float(rank)),
        meet=sum(point["connect"] for point in meetings) / total,
        exchange=exchange,
        value=value,
        connection=points["connection"],
        step=step,
        link=link,
        copying=max(
            point["bytes"] * 2 * (point["hosts"] - 1) / point["hosts"] / point["seconds"]
            for point in free
        ),
    )


def _exchange(meetings: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return seconds per rank, and per rank and value, by least squares of the relative errors."""
    rows = [
        [point["ranks"] / point["exchange"], point["ranks"] ** 2 / point["exchange"]]
        for point in meetings
    ]
    (rank, value), *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    return max(0.0, float(rank)), max(0.0, float(value))


def _ring(points: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return seconds per step and the used fraction of the link, by least squares of the relative
    errors over a ring's ``points``.
    """
    rows, ones = [], []
    for point in points:
        wire = crossing(point["bytes"], point["hosts"], point["rate"])
        rows.append([2 * (point["hosts"] - 1) / point["seconds"], wire / point["seconds"]])
        ones.append(1.0)
    (step, slower), *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    return max(0.0, float(step)), 1 / float(slower)


def crossing(nbytes: float, hosts: int, rate: float) -> float:
    """Return the seconds for which a ring of hosts keeps its links busy."""
    return 2 * (hosts - 1) / hosts * nbytes * 8 / (rate * PAYLOAD)


def agreement(ranks: int, at: Constants) -> float:
    """Return the seconds of one round. Without a tree: a message to and from each rank, and one
    latency.
    """
    if ranks <= overlay.DIRECT:
        return LATENCY + 2 * (ranks - 1) * at.message
    steps = 2 * depth(ranks)
    return steps * (LATENCY + (overlay.FANOUT + 1) * at.message) + ranks * at.rank


def start(ranks: int, rate: float, at: Constants) -> float:
    """Return the seconds from the start of the ranks' programs until they can exchange: the store
    serves all ranks from one thread at a time, over one link; then each rank connects to the ranks
    with lower numbers.
    """
    store = ranks * (at.meet + EXCHANGES * (at.exchange + ranks * at.value))
    answers = EXCHANGES * ranks * ranks * MESSAGE_BYTES * 8 / (rate * PAYLOAD)
    return store + answers + ranks * at.connection


def allreduce(ranks: int, rate: float, at: Constants, nbytes: float = GRADIENTS) -> float:
    """Return the seconds of a ring over the hosts, in which each rank of a host moves a slice; sums
    in shared memory overlap.
    """
    hosts = max(2, -(-ranks // HOST))
    link = crossing(nbytes, hosts, rate) / at.link
    copying = 2 * (hosts - 1) / hosts * nbytes / HOST / at.copying
    return 2 * (hosts - 1) * max(LATENCY, at.step) + max(link, copying)
