"""The attempts of a run: the claim of an attempt by a runner, its end, and the decision to retry.

Every step is a file that exactly one process can create, so an attempt runs once and ends once. If
a process is killed between two steps, the next process that reads the folder completes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from farandole.job.runs.folder import RunFolder, read_json, write_json, write_once
from farandole.job.runs.identity import ProcessIdentity
from farandole.job.runs.journal import JournalPart, read
from farandole.job.runs.states import RunState
from farandole.jobs.retries import AttemptEnd, decide

_TAIL = 1 << 16  # bytes at the end of a journal to search for the last step

HOSTS_VARIABLE = "FARANDOLE_RUN_HOSTS"  # the hosts that the target chose, for the runner


def number(folder: RunFolder) -> int:
    """Return the number of the current or next attempt, from 1."""
    return len(_ended(folder)) + 1


def claim(folder: RunFolder, attempt: int) -> bool:
    """Make this process the runner of an attempt; return False if another process already is."""
    return write_once(
        folder.file(f"claim-{attempt}.json"),
        {
            "process": ProcessIdentity.of().to_json(),
            "time": time.time(),
            "slurm_job": os.environ.get("SLURM_JOB_ID", ""),
            "hosts": os.environ.get(HOSTS_VARIABLE, ""),
        },
    )


def claimant(folder: RunFolder, attempt: int) -> ProcessIdentity | None:
    """Return the process that runs an attempt; None if no process has claimed it yet."""
    data = read_json(folder.file(f"claim-{attempt}.json"))
    return None if data is None else ProcessIdentity.from_json(data["process"])


def claimed_ticket(folder: RunFolder, attempt: int, kind: str) -> dict[str, Any] | None:
    """Return the ticket data of an attempt's runner, in the form of targets of this ``kind``; None
    without a claim, or if the claim lacks the data.

    If a supervisor is killed before it saves the ticket, only the claim remains.
    """
    claimed = read_json(folder.file(f"claim-{attempt}.json"))
    if claimed is None:
        return None
    if kind == "slurm":
        return {"job": claimed["slurm_job"]} if claimed.get("slurm_job") else None
    hosts = {"hosts": claimed["hosts"]} if claimed.get("hosts") else {}
    identity = ProcessIdentity.from_json(claimed["process"])
    return {**identity.to_json(), "folder": folder.path, **hosts}


def save_ticket(folder: RunFolder, attempt: int, ticket: Mapping[str, Any]) -> None:
    """Save the ticket of an attempt's runner for a later supervisor."""
    write_json(folder.file(f"ticket-{attempt}.json"), ticket)


def ticket_of(folder: RunFolder, attempt: int) -> dict[str, Any] | None:
    return read_json(folder.file(f"ticket-{attempt}.json"))


def conclude(
    folder: RunFolder,
    attempt: int,
    state: RunState,
    *,
    cause: str = "",
    domain: str = "",
    exit_code: int | None = None,
) -> None:
    """Record the end of an attempt, then end the run or return it to the queue.

    Has no effect if the attempt has already ended.
    """
    end = AttemptEnd(cause, domain, progress(folder), exit_code)
    again, reason = False, ""
    if state is RunState.FAILED and not folder.submitted().get("tracked"):
        again, reason = decide(folder.spec().retries, [*history(folder), end])
    write_once(
        folder.file(f"attempt-{attempt}.json"),
        {
            "state": state.value,
            "time": time.time(),
            **end._asdict(),
            "again": again,
            "reason": reason,
        },
    )
    settle(folder)


def settle(folder: RunFolder) -> None:
    """Carry out the decision after the last ended attempt, which a killed process may have
    begun.
    """
    ended = _ended(folder)
    if not ended or folder.end() is not None:
        return
    last = read_json(folder.file(f"attempt-{ended[-1]}.json"))
    assert last is not None
    if not last["again"]:
        cause = last["cause"]
        if last["reason"]:
            cause = f"{cause}\nNot retried: {last['reason']}."
        folder.finish(RunState(last["state"]), cause, last["exit_code"])
    elif not _returned(folder, ended[-1]):
        folder.change(RunState.QUEUED, attempt=ended[-1], cause=last["cause"], why=last["reason"])


def _returned(folder: RunFolder, attempt: int) -> bool:
    """Return whether the run has returned to the queue since ``attempt``."""
    return any(
        event.get("event") == "state"
        and event.get("attempt", 0) >= attempt
        and event["state"] == RunState.QUEUED.value
        for event in folder.events()
    )


def history(folder: RunFolder) -> list[AttemptEnd]:
    """Return the ends of all attempts so far, oldest first."""
    found = []
    for attempt in _ended(folder):
        data = read_json(folder.file(f"attempt-{attempt}.json")) or {}
        found.append(AttemptEnd(**{name: data[name] for name in AttemptEnd._fields}))
    return found


def progress(folder: RunFolder) -> int:
    """Return the highest step among the last metrics of rank 0; -1 without metrics."""
    path = folder.metrics_of(0)
    try:
        size = os.path.getsize(path)
    except OSError:
        return -1
    part: JournalPart = read(path, max(0, size - _TAIL))
    steps = [record.get("step") for record in part.records if isinstance(record, dict)]
    return max((step for step in steps if isinstance(step, int)), default=-1)


def remove_torn_files(folder: RunFolder) -> None:
    """Remove the temporary files of killed writers on this host."""
    runners = [claimant(folder, attempt) for attempt in [*_ended(folder), number(folder)]]
    if any(runner is not None and not runner.here for runner in runners):
        return  # process ids of other hosts are meaningless on this host
    for name in os.listdir(folder.path):
        match = re.fullmatch(r".+\.(\d+)\.\d+\.tmp", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder.file(name))


def _ended(folder: RunFolder) -> list[int]:
    try:
        names = os.listdir(folder.path)
    except FileNotFoundError:
        return []
    found = (re.fullmatch(r"attempt-(\d+)\.json", name) for name in names)
    return sorted(int(match[1]) for match in found if match)
