"""Conformance kit of the targets of jobs: a runner is started, found and ended."""

from __future__ import annotations

import contextlib
import json
import os
import time

from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import Resources, RunSpec
from farandole.jobs.submission import write_request
from farandole.jobs.targets.contract import Capacity, Launch, RunTarget, Ticket


def conforms(target: RunTarget, home: RunsHome, spec: RunSpec, seconds: float = 60.0) -> None:
    """Assert that a target fulfils its contract; ``spec`` is a request that it can run."""
    capacity = target.capacity()
    assert capacity is None or isinstance(capacity, Capacity)
    target.check(Resources())
    assert isinstance(target.launch(spec), Launch)
    assert list(target.presence([])) == []
    folder = RunFolder(os.path.join(home.runs, spec.experiment, home.new_id(spec.experiment)))
    folder.folder()
    write_request(folder, spec, home, source="")
    sleeping = target.start(folder, ["sleep", "60"], dict(os.environ))
    brief = target.start(folder, ["true"], dict(os.environ))
    tickets = [Ticket(each.target, json.loads(json.dumps(each.data))) for each in (sleeping, brief)]
    try:
        deadline = time.monotonic() + seconds
        while [each.state for each in target.presence(tickets)] != ["present", "gone"]:
            assert time.monotonic() < deadline, target.presence(tickets)
            time.sleep(0.1)
    finally:
        target.cancel(tickets[0], 1.0)
    while target.presence(tickets)[0].state != "gone":
        assert time.monotonic() < deadline + seconds, target.presence(tickets)
        time.sleep(0.1)
    target.cancel(tickets[0], 1.0)  # has no effect on a runner that is gone
    for ticket in tickets:
        with contextlib.suppress(ChildProcessError, KeyError):
            os.waitpid(ticket.data["pid"], 0)
