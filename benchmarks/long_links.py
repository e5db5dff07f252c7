"""``python -m benchmarks.long_links``: one and several TCP connections between two distant hosts.

The hosts are network namespaces on links of 1 Gbit/s (root, ip, tc, nsenter, /dev/net/tun); a
program between them delays every packet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from benchmarks import hosts, report
from benchmarks.crew import measure
from benchmarks.samples import OURS

RATE = "1gbit"
DELAYS = (0.0, 0.01, 0.02)  # seconds, each way
STREAMS = (1, 4)


def seconds_of(delay: float, streams: int) -> dict[int, float]:
    """Return the seconds of an allreduce by its size in bytes."""
    os.environ["FARANDOLE_TCP_STREAMS"] = str(streams)
    with hosts.made(2, RATE, delay) as among:
        cases = list(measure(["ring"], 2, quick=False, among=among))
    return {case.bytes: case.median(OURS) for case in cases}


def table(found: Mapping[tuple[float, int], Mapping[int, float]]) -> str:
    """Return the table. ``found``: the results of ``seconds_of`` by delay and connections."""
    titles = [
        "one way",
        "tensor",
        *(f"{streams} connection{'s' * (streams > 1)}" for streams in STREAMS),
    ]
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for delay in dict.fromkeys(delay for delay, _ in found):
        for nbytes in found[delay, STREAMS[0]]:
            times = [report.seconds(found[delay, streams][nbytes]) for streams in STREAMS]
            rows.append(f"| {1000 * delay:g} ms | {nbytes >> 20} MiB | {' | '.join(times)} |")
    return "\n".join(rows)


def main() -> int:
    found = {}
    for delay in DELAYS:
        for streams in STREAMS:
            found[delay, streams] = seconds_of(delay, streams)
            print(
                f"{1000 * delay:g} ms, {streams}: {found[delay, streams]}",
                file=sys.stderr,
                flush=True,
            )
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
