"""One rank of a benchmark: ``python -m benchmarks.worker`` with a plan (JSON) as its argument.
Started by crew.py.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path

from benchmarks.crew import Plan, emit
from benchmarks.steps import FRAMEWORKS


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    # Open MPI; MPICH and Intel MPI
    given = ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if plan.mpi else ("FARANDOLE_RANK",)
    rank = int(next(os.environ[name] for name in given if name in os.environ))
    os.environ.update(plan.environment(rank))
    if not plan.driver:
        watch_the_parent(Path(plan.rendezvous).parent)
    cores = sorted(os.sched_getaffinity(0))
    if FRAMEWORKS[plan.framework].one_core and plan.size <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})  # before the framework counts the cores

    benchmarks = [importlib.import_module(f"benchmarks.{name}") for name in plan.benchmarks]
    team = importlib.import_module(f"benchmarks.steps.{plan.framework}").connect(rank, plan)
    for benchmark in benchmarks:
        for case in benchmark.cases(team, plan):
            if rank == 0:
                emit(case)
    team.close()


def watch_the_parent(folder: Path) -> None:
    """Exit with the process that hosts the store, because mpirun alone would let the ranks
    continue. Also remove its temporary folder, in case it could not.
    """
    from farandole.errors import HorovodInternalError
    from farandole.net.store import StoreClient

    client = StoreClient(os.environ["FARANDOLE_STORE"], os.environ["FARANDOLE_SECRET"])

    def wait() -> None:
        try:
            client.get("never", timeout=86400.0)
        except (HorovodInternalError, ConnectionError):
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
