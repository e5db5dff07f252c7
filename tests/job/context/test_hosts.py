"""Five ranks on two hosts find the ranks that share memory, and exchange slices over the network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from farandole.net.handshake import new_secret
from tests.kits.hosts import hosts
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

DRIVER = """
import sys
from farandole.net.store import StoreServer
server = StoreServer({secret!r}, host={address!r})
print(server.address, flush=True)
sys.stdin.read()
server.close()
"""
WORKER = """
import numpy as np
from farandole.job import context
from farandole.core.engine import Entry
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
context.init()
engine = context.engine()
rank = context.rank()
for size in (10, 200_003):
    array = np.full(size, rank + 1, np.float32)
    request = Request(f"x{size}", Kind.ALLREDUCE, DType.FLOAT32, (size,), ReduceOp.AVERAGE)
    engine.run([Entry(request, Buffer(array, array, DType.FLOAT32))])
    assert np.all(array == 3), array
    print(type(engine.transport).__name__, float(array[0]))
rows = np.full(2 * rank, rank, np.int64)
gather = Request("g", Kind.ALLGATHER, DType.INT64, (rank, 2))
((flat, parts),) = engine.run([Entry(gather, Buffer(rows, rows, DType.INT64))])
assert parts == (0, 1, 2, 3, 4) and flat.tolist() == np.repeat(range(5), [0, 2, 4, 6, 8]).tolist()
context.shutdown()
context.init()
assert context.size() == 5
"""


def test_two_hosts_one_of_three_ranks_and_one_of_two() -> None:
    secret = new_secret()
    with hosts(2, ssh=False) as (a, b):
        driver = subprocess.Popen(
            a.command(sys.executable, "-c", DRIVER.format(secret=secret, address=a.address)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        workers = []
        try:
            assert driver.stdout is not None
            address = driver.stdout.readline().strip()
            # dealt in turn: neighbours are not on one host
            for rank, host in enumerate([a, b, a, b, a]):
                env = {
                    **os.environ,
                    "FARANDOLE_STORE": address,
                    "FARANDOLE_SECRET": secret,
                    "FARANDOLE_RANK": str(rank),
                    "FARANDOLE_SIZE": "5",
                    "OMP_NUM_THREADS": "1",
                }
                command = host.command(sys.executable, "-c", WORKER)
                workers.append(
                    subprocess.Popen(
                        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                    )
                )
            said = [worker.communicate(timeout=200) for worker in workers]
            assert [worker.returncode for worker in workers] == [0] * 5, [err for _, err in said]
            assert all(out.split() == ["Hierarchical", "3.0"] * 2 for out, _ in said)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
            driver.kill()
            driver.wait()


LOSER = """
import os, sys
import numpy as np
from farandole.job import context
from farandole.net import liveness
from farandole.core.engine import Entry
from farandole.errors import HorovodInternalError
from farandole.base.types import Buffer, DType, Kind, ReduceOp, Request
liveness.LOST_SECONDS, liveness.PROBE_AFTER, liveness.PROBE_EVERY, liveness.PROBES = 2.0, 1, 1, 1
context.init()
engine, rank, waiting = context.engine(), context.rank(), sys.argv[1]

def reduce(size):
    array = np.ones(size, np.float32)
    request = Request(f"x{size}", Kind.ALLREDUCE, DType.FLOAT32, (size,), ReduceOp.SUM)
    engine.run([Entry(request, Buffer(array, array, DType.FLOAT32))])

reduce(10)
print("ready", flush=True)
try:
    if waiting == "board" and rank == 1:
        sys.stdin.readline()  # the other one posted long ago
    while True:
        reduce(10 if waiting == "board" else 1 << 22)
except HorovodInternalError as error:
    print(error, flush=True)
    os._exit(0)  # without a report to the store
"""


@pytest.mark.parametrize("waiting", ["board", "collective"])
@pytest.mark.parametrize("loss", ["both ways", "one way"])
def test_a_host_that_vanishes_is_noticed_on_both_sides(loss: str, waiting: str) -> None:
    """Packets are lost from one moment on; no rank is reported as shut down. Times are a quarter of
    the real ones.
    """
    secret = new_secret()
    with hosts(2, ssh=False) as (a, b), ExitStack() as stack:
        driver = stack.enter_context(
            ended(a.command(sys.executable, "-c", DRIVER.format(secret=secret, address="0.0.0.0")))
        )
        assert driver.stdout is not None
        port = driver.stdout.readline().strip().rpartition(":")[2]
        workers = []
        for rank, host in enumerate((a, b)):
            env = {
                **os.environ,
                "FARANDOLE_STORE": f"{a.address}:{port}",
                "FARANDOLE_SECRET": secret,
                "FARANDOLE_RANK": str(rank),
                "FARANDOLE_SIZE": "2",
                "OMP_NUM_THREADS": "1",
            }
            command = host.command(sys.executable, "-c", LOSER, waiting)
            workers.append(stack.enter_context(ended(command, env)))
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        if loss == "both ways":
            a.lose(b)
        b.lose(a)
        said = [worker.communicate("\n", timeout=200)[0] for worker in workers]
    assert mentions(said[0], "rank 1", "host")
    # rank 0 was quicker, and has gone
    broke = loss == "one way" and "rank 0 was lost: its connection broke" in said[1]
    assert broke or mentions(said[1], "rank 0", "host")


@contextmanager
def ended(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
