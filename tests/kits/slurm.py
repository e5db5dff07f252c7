"""A Slurm cluster on this machine: munged, slurmctld and two slurmd in a temporary folder."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from farandole.net.store.ports import free_port

PACKAGES = ("slurmctld", "slurmd", "munge", "slurm-client")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin"])
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
JobRequeue=1
KillWait=5
ReturnToService=2
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@functools.cache
def reason() -> str:
    """Return why no cluster can run here; empty if one can. ``.ci/run`` installs Slurm."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    missing = _missing()
    return (
        f"Slurm is not installed ({', '.join(missing)}): apt-get install {' '.join(PACKAGES)}"
        if missing
        else ""
    )


def _missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons. Raises AssertionError with their logs if the nodes are not idle within
        a minute.
        """
        facts = {
            "host": socket.gethostname().split(".")[0],
            "user": pwd.getpwuid(os.geteuid()).pw_name,
        }
        ports: list[int] = []
        while len(ports) < 3:  # no other process takes them until the daemons listen
            ports += {free_port()} - set(ports)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(folder=self.folder, ports=ports, **facts)
        )
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munge.seed",
            f"--log-file={self.folder}/munged.log",
        )
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-i", "-f", f"{self.folder}/slurm.conf")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf")
        self._until(
            lambda: self.run(["sinfo", "-h", "-o", "%t %D"]).stdout.strip() == "idle 2",
            "idle nodes",
        )

    def run(
        self, command: Sequence[str], *, timeout: float = 150, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(command),
            env={**self.environment(), **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.folder,
        )

    def environment(self) -> Mapping[str, str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "FARANDOLE_"))
        }
        return {**clean, "PATH": PATH, "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def stop(self) -> None:
        if len(self._daemons) > 1:
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                self.run(["scancel", "--partition=all"], timeout=10)
                self._until(lambda: not self.run(["squeue", "-h"]).stdout, "end of the jobs", 20.0)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(3)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Return the processes of this cluster: the daemons of steps outlive slurmd."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and mark in Path(f"/proc/{entry}/environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(entry))
        return found

    def _daemon(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.{len(self._daemons)}.out").open("wb")
        with log:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _until(self, condition: object, what: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            logs = "\n".join(
                f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.out")
            )
            assert time.monotonic() < end, f"no {what} within {seconds} s:\n{logs}"
            time.sleep(0.05)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a cluster, and end it with all its jobs after the block."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
