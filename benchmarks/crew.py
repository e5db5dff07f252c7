"""Starts the ranks of a benchmark and collects their measurements.

With mpi4py and mpirun, the ranks are started by mpirun, so that Farandole, Gloo and MPI are
connected in the same processes; otherwise they are child processes. This process hosts the store
for Farandole's rendezvous. Benchmarks that may need parameter servers are started by ``farandole
run``, whose driver provides both.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import hosts
from benchmarks.samples import INTEL, MPI, MPICH, Case, Found, from_record
from benchmarks.steps import FRAMEWORKS
from farandole.job.config import Connection, Placement, Settings
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer

MARK = "farandole-bench "
ROOT = Path(__file__).parent.parent


class BenchmarkError(RuntimeError):
    """The ranks of a benchmark failed; the message holds their output."""


@dataclass(frozen=True)
class Plan:
    """The instructions for a worker. They contain no secret, because a plan is a command-line
    argument; the secret is in the environment.
    """

    size: int
    benchmarks: list[str]
    quick: bool
    rendezvous: str  # the file for the rendezvous of Gloo's ranks
    framework: str = "torch"
    hosts: int = 1
    mpi: bool = False  # the ranks are started and numbered by mpirun
    driver: bool = False  # by farandole run, without peers
    rate: str = ""  # of the links between hosts
    only: list[str] = field(default_factory=list)  # strategies and codecs; none: all
    data: str = ""  # the folder of MNIST
    seeds: int = 3  # of strategies and learning
    model: str = "plain"  # of learning: a key of problems.NORMS

    def environment(self, rank: int) -> dict[str, str]:
        slot = hosts.slots(self.size, self.hosts)[rank]
        return Placement(
            rank=rank,
            size=self.size,
            local_rank=slot.local_rank,
            local_size=slot.local_size,
            cross_rank=slot.cross_rank,
            cross_size=slot.cross_size,
            homogeneous=not self.size % self.hosts,
        ).to_env()


def mpirun(size: int) -> list[str] | None:
    """Return the beginning of an mpirun command of a supported MPI; None if mpi4py or mpirun is
    missing.
    """
    neighbor = Path(sys.executable).parent / "mpirun"
    program = str(neighbor) if neighbor.exists() else shutil.which("mpirun")
    if program is None or importlib.util.find_spec("mpi4py") is None:
        return None
    version = subprocess.run(
        [program, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = implementation(version.stdout)
    if found != MPI:
        # MPICH and Intel MPI use shared memory by default
        return None if found is None else [program]
    # Shared memory only; without the hierarchical module ("han"), which makes a single host slower
    # up to 1 MiB. MPI gets the option for more ranks than cores only if there are more: its
    # ranks then yield while they wait.
    slots = (
        ["--host", f"localhost:{size}"] if size <= (os.cpu_count() or 1) else ["--oversubscribe"]
    )
    return [
        program,
        "--allow-run-as-root",
        *slots,
        "--bind-to",
        "none",
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "self,sm",
        "--mca",
        "coll",
        "^han",
    ]


def implementation(version: str) -> str | None:
    """Return the MPI that prints this version, as mpirun or as a library; None if unknown."""
    marks = {
        "Open MPI": MPI,
        "Open-MPI": MPI,
        "OpenRTE": MPI,
        "Intel(R) MPI": INTEL,
        "MPICH": MPICH,
        "HYDRA": MPICH,
    }
    return next((name for mark, name in marks.items() if mark in version), None)


def measure(
    benchmarks: Sequence[str],
    size: int,
    quick: bool,
    framework: str = "torch",
    among: Sequence[Any] = (),
    tls: bool = False,
    **facts: Any,
) -> Iterator[Found | str]:
    """Yield each result as soon as it is measured, and lines of progress.

    ``among``: the hosts of the ranks; default: this one. ``facts``: further fields of the ``Plan``.
    Raises BenchmarkError when a rank fails. No process is left in either case.
    """
    secret = new_secret(tls=tls)
    store = hosts.store_on(among[0], secret) if among else StoreServer(secret)
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        plan = Plan(
            size,
            list(benchmarks),
            quick,
            str(Path(folder, "gloo")),
            framework,
            len(among) or 1,
            **facts,
        )
        launcher = mpirun(size) if framework == "torch" and not (among or plan.driver) else None
        plan = replace(plan, mpi=bool(launcher))
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": hosts.DEVICE if among else "lo",
            "TMPDIR": folder,  # for mpirun's session: a short path, removed at the end
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            **FRAMEWORKS[framework].environment,
            **Connection(store=store.address, secret=secret).to_env(),
            **Settings(tls=tls).to_env(),
        }
        ranks = _start(plan, env, Path(folder, "stderr"), among, launcher)
        try:
            for line in ranks[0].stdout or ():
                _, mark, record = line.partition(MARK)
                if mark:
                    yield read(record)
            codes = [rank.wait() for rank in ranks]
            if any(codes):
                output = Path(folder, "stderr").read_text(errors="replace").strip()
                raise BenchmarkError(
                    f"the ranks ended with exit codes {codes}; they wrote:\n{output}"
                )
        finally:
            _end(ranks)
            store.close()


def emit(found: Found | str) -> None:
    """Send a result, or a line about progress, from rank 0 to the driver."""
    print(MARK + json.dumps(found if isinstance(found, str) else vars(found)), flush=True)


def read(record: str) -> Found | str:
    found = json.loads(record)
    if isinstance(found, str):
        return found
    return Case(**found) if "samples" in found else from_record(found)


def _start(
    plan: Plan, env: dict[str, str], log: Path, among: Sequence[Any], launcher: Sequence[str] | None
) -> list[subprocess.Popen[str]]:
    worker = [sys.executable, "-m", "benchmarks.worker", json.dumps(asdict(plan))]
    if among:
        places = [
            among[int(slot.host.removeprefix("host"))]
            for slot in hosts.slots(plan.size, plan.hosts)
        ]
        commands = [
            (place.command(*worker), {**env, "FARANDOLE_RANK": str(rank)})
            for rank, place in enumerate(places)
        ]
    elif plan.driver:
        run = [sys.executable, "-m", "farandole.cli", "run", "-np", str(plan.size)]
        commands = [([*run, *worker], env)]
    elif launcher:
        commands = [([*launcher, "-np", str(plan.size), *worker], env)]
    else:
        commands = [(worker, {**env, "FARANDOLE_RANK": str(rank)}) for rank in range(plan.size)]
    ranks: list[subprocess.Popen[str]] = []
    with log.open("w") as stderr:
        for number, (command, each_env) in enumerate(commands):
            stdout = subprocess.PIPE if number == 0 else subprocess.DEVNULL
            ranks.append(
                subprocess.Popen(
                    command,
                    env=each_env,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    text=True,
                    # Ctrl-C reaches only this process, which then ends the ranks
                    start_new_session=True,
                )
            )
    return ranks


def _end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for kill in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                if rank.poll() is None:
                    os.killpg(rank.pid, kill)
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(5)
    for rank in ranks:
        if rank.stdout:
            rank.stdout.close()
