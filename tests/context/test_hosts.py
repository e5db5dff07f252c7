"""Four ranks on two hosts: who shares memory is found out, and the slices cross the network."""

from __future__ import annotations

import os
import subprocess
import sys

from farandole.handshake import new_secret
from tests.kits.hosts import two_hosts

DRIVER = """
import sys
from farandole.store import StoreServer
server = StoreServer({secret!r}, host={address!r})
print(server.address, flush=True)
sys.stdin.read()
server.close()
"""
WORKER = """
import numpy as np
from farandole import context
from farandole.engine import Entry
from farandole.types import Buffer, DType, Kind, ReduceOp, Request
context.init()
engine = context.engine()
rank = context.rank()
for size in (10, 200_003):
    array = np.full(size, rank + 1, np.float32)
    request = Request(f"x{size}", Kind.ALLREDUCE, DType.FLOAT32, (size,), ReduceOp.AVERAGE)
    engine.run([Entry(request, Buffer(array, array, DType.FLOAT32))])
    assert np.all(array == 2.5), array
    print(type(engine.transport).__name__, float(array[0]))
rows = np.full(2 * rank, rank, np.int64)
gather = Request("g", Kind.ALLGATHER, DType.INT64, (rank, 2))
((flat, parts),) = engine.run([Entry(gather, Buffer(rows, rows, DType.INT64))])
assert parts == (0, 1, 2, 3) and flat.tolist() == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]
context.shutdown()
context.init()
assert context.size() == 4
"""


def test_two_hosts_of_two() -> None:
    secret = new_secret()
    with two_hosts() as hosts:
        where = [hosts[0], hosts[1], hosts[0], hosts[1]]  # dealt in turn: neighbours are not on one host
        driver = subprocess.Popen(
            ["ip", "netns", "exec", hosts[0][0], sys.executable, "-c",
             DRIVER.format(secret=secret, address=hosts[0][1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        workers = []
        try:
            assert driver.stdout is not None
            address = driver.stdout.readline().strip()
            for rank, (name, _) in enumerate(where):
                env = {
                    **os.environ, "FARANDOLE_STORE": address, "FARANDOLE_SECRET": secret,
                    "FARANDOLE_RANK": str(rank), "FARANDOLE_SIZE": "4", "OMP_NUM_THREADS": "1",
                }  # fmt: skip
                command = ["ip", "netns", "exec", name, sys.executable, "-c", WORKER]
                workers.append(
                    subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            said = [worker.communicate(timeout=60) for worker in workers]
            assert [worker.returncode for worker in workers] == [0] * 4, [err for _, err in said]
            assert all(out.split() == ["Hierarchical", "2.5"] * 2 for out, _ in said)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
            driver.kill()
            driver.wait()
