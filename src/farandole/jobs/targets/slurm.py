"""The target ``slurm``: a batch job whose first node executes the runner.

The batch job outlives the login shell and the supervisor. The home of the runs must be on a shared
file system of all nodes.
"""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.targets.contract import (
    Capacity,
    Launch,
    NodeCounts,
    Presence,
    TargetSpec,
    Ticket,
)
from farandole.jobs.targets.local import check_fixed, check_options

QUESTION_SECONDS = 2.0  # the shortest time between two queries to Slurm's controller
_TIMEOUT = 30.0
_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD")
_PRESENT = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
# Final states not caused by the program.
_PREEMPTED = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED")
_FORMAT = "%i|%T|%r"


class SlurmTarget:
    """A target that executes runs as Slurm batch jobs.

    Options: ``partition``, ``account``, ``qos``, ``constraint``, ``time`` (a time limit in sbatch's
    format) and ``extra`` (additional options of sbatch as one string).
    """

    kind: ClassVar[str] = "slurm"
    options: ClassVar[tuple[str, ...]] = (
        "partition",
        "account",
        "qos",
        "constraint",
        "time",
        "extra",
    )

    def __init__(self, spec: TargetSpec) -> None:
        check_options(spec, self.options)
        self._spec = spec
        self._asked = 0.0
        self._known: dict[str, Presence] = {}

    def check(self, resources: Resources) -> None:
        check_fixed(self._spec, resources)
        if shutil.which("sbatch") is None:
            raise SettingsError(
                f"the target {self._spec.name!r} needs Slurm's sbatch, which is not on the PATH;"
                " submit on a login node of the cluster"
            )
        most = self._spec.max_nodes
        if most and resources.nodes > most:
            raise SettingsError(
                f"the target {self._spec.name!r} has at most {most} nodes, but {resources.nodes}"
                " are requested; request fewer, or raise its max_nodes"
            )

    def capacity(self) -> Capacity | None:
        return None  # Slurm has its own queue

    def start(self, folder: RunFolder, command: Sequence[str], env: Mapping[str, str]) -> Ticket:
        folder.folder("logs")
        attempt = command[-1]
        if (found := self._find(folder, attempt)) is not None:
            return found
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
        words = ["sbatch", *self._request(folder, attempt)]
        done = _run(words, env=env, script=script)
        if done.returncode:
            raise RunError(f"sbatch refuses the run: {_last_line(done.stderr)}")
        number = done.stdout.strip().split(";")[0]
        return Ticket(self._spec.name, {"job": number})

    def _find(self, folder: RunFolder, attempt: str) -> Ticket | None:
        """Return the ticket of an attempt's job submitted by a killed supervisor, if any."""
        words = ["squeue", "--noheader", f"--name={folder.run_id}", "--format=%i|%k"]
        for line in _run(words).stdout.splitlines():
            job, _, comment = line.strip().partition("|")
            if comment == _comment(attempt):
                return Ticket(self._spec.name, {"job": job})
        return None

    def _request(self, folder: RunFolder, attempt: str) -> list[str]:
        """Return the options of sbatch for an attempt of a run."""
        spec = folder.spec()
        need = spec.resources
        words = [
            "--parsable",
            "--no-requeue",  # Farandole counts the attempts
            "--export=ALL",
            f"--job-name={folder.run_id}",
            f"--comment={_comment(attempt)}",
            f"--chdir={folder.path}",
            f"--output={folder.file('logs', 'runner.txt')}",
            "--open-mode=append",
            f"--nodes={need.nodes}",
            f"--ntasks-per-node={need.ranks_per_node}",
            f"--cpus-per-task={max(1, math.ceil(need.cores))}",
        ]
        if need.memory:
            megabytes = math.ceil(need.memory * need.ranks_per_node / (1 << 20))
            words.append(f"--mem={megabytes}M")
        if need.gpus:
            words.append(f"--gpus-per-node={need.gpus * need.ranks_per_node}")
        if spec.time_limit:
            words.append(f"--time={math.ceil((spec.time_limit + spec.grace_seconds) / 60)}")
        words += [
            f"--{name}={self._spec.options[name]}"
            for name in self.options[:-1]
            if self._spec.options.get(name) and not (name == "time" and spec.time_limit)
        ]
        return words + shlex.split(str(self._spec.options.get("extra", "")))

    def presence(self, tickets: Sequence[Ticket]) -> Sequence[Presence]:
        jobs = [str(ticket.data["job"]) for ticket in tickets]
        fresh = time.monotonic() - self._asked < QUESTION_SECONDS
        if not fresh or not all(job in self._known for job in jobs):
            self._query(jobs)
        return [self._known.get(job, Presence("present")) for job in jobs]

    def _query(self, jobs: Sequence[str]) -> None:
        """Update the presences of the jobs. Has no effect if Slurm does not respond."""
        self._asked = time.monotonic()
        try:
            done = _run(
                [
                    "squeue",
                    "--noheader",
                    "--states=all",
                    f"--format={_FORMAT}",
                    f"--jobs={','.join(jobs)}",
                ]
            )
        except RunError:
            return
        if done.returncode and "Invalid job id" not in done.stderr:
            return
        rows = parsed(done.stdout)
        self._known = {job: rows.get(job, Presence("gone", "Slurm has ended it")) for job in jobs}

    def cancel(self, ticket: Ticket, grace_seconds: float) -> None:
        job = str(ticket.data["job"])
        pending = self._known.get(job, Presence("present")).state == "pending"
        # If the job runs, its runner ends the ranks within the grace period.
        signal = [] if pending else ["--batch", "--signal=TERM"]
        _run(["scancel", *signal, job])

    def nodes(self, tickets: Sequence[Ticket]) -> NodeCounts:
        """Return the number of the partition's nodes by state. All users share these nodes. Raises
        RunError if Slurm does not respond.
        """
        words = ["sinfo", "--noheader", "--Node", "--format=%N|%T"]
        if partition := self._spec.options.get("partition"):
            words.append(f"--partition={partition}")
        done = _run(words)
        if done.returncode:
            raise RunError(f"sinfo fails: {_last_line(done.stderr)}")
        return node_counts(done.stdout)

    def launch(self, spec: RunSpec) -> Launch:
        return Launch("slurm")


def parsed(output: str) -> dict[str, Presence]:
    """Return presences by job from squeue's lines ``job|state|reason``. Pure."""
    found = {}
    for line in output.splitlines():
        job, state, reason = [*line.strip().split("|"), "", ""][:3]
        if state in _PENDING:
            found[job] = Presence("pending", reason)
        elif state in _PRESENT:
            found[job] = Presence("present")
        elif job:
            words = state.lower().replace("_", " ")
            found[job] = Presence(
                "gone", f"Slurm ended the job: {words}", preempted=state in _PREEMPTED
            )
    return found


def node_counts(output: str) -> NodeCounts:
    """Return the number of nodes by state from sinfo's lines ``node|state``. Pure.

    A node on several lines counts once. States may end with sinfo's flags: ``*`` not responding,
    ``~`` powered down, ``#`` powering up, ``%`` powering down. Powered-down nodes are not counted.
    """
    states = dict(line.strip().split("|") for line in output.splitlines() if "|" in line)
    kinds = [_kind_of(state) for state in states.values()]
    return NodeCounts(**{kind: kinds.count(kind) for kind in NodeCounts._fields})


def _kind_of(state: str) -> str:
    word = state.rstrip("*~#!%$@^-+")
    flags = state[len(word) :]
    if "~" in flags or word in ("powered_down", "power_down"):
        return ""
    if "#" in flags or word in ("powering_up", "power_up", "planned_power_up", "configuring"):
        return "preparing"
    if "%" in flags or "!" in flags or word == "powering_down":
        return "leaving"
    if "*" not in flags and word in ("idle", "planned", "reserved"):
        return "idle"
    if "*" not in flags and word in ("allocated", "mixed", "completing", "draining"):
        return "running"
    return "unusable"


def _run(
    words: Sequence[str], env: Mapping[str, str] | None = None, script: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm program. Raises RunError if it is missing or times out."""
    try:
        return subprocess.run(
            list(words),
            input=script,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env=None if env is None else dict(env),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{words[0]} does not work: {error}") from error


def _comment(attempt: str) -> str:
    return f"attempt {attempt}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
