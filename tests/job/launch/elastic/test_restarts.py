"""``--max-restarts``: scripts of torch.distributed that start again, as with torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farandole.job.elastic.decisions import Decision, GiveUp, Publish, Restart, Start
from farandole.job.elastic.discovery.contract import FixedHosts, WithoutHosts, reopened
from farandole.job.elastic.discovery.script import ScriptDiscovery
from farandole.job.elastic.options import ElasticOptions
from farandole.job.elastic.plan import ElasticPlan
from farandole.job.elastic.restarts import SETTLE, RestartingCoordinator
from tests.kits.command import run_command

# DistributedDataParallel on gloo, which knows nothing of Farandole. Rank 1 ends at step 4 of the
# first start. In the second start, hosts.txt gets two more slots at step 6.
SCRIPT = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
first, checkpoint = 0, os.path.join(folder, "checkpoint.pt")
if os.path.exists(checkpoint):
    found = torch.load(checkpoint)
    first = found["step"]
    model.load_state_dict(found["model"])
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
if rank == 0:
    with open(os.path.join(folder, "starts"), "a") as file:
        words = [restarts, os.environ["TORCHELASTIC_MAX_RESTARTS"], size, first]
        file.write(json.dumps(words) + "\\n")
for step in range(first, 10):
    if restarts == 0 and step == 4 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if restarts == 1 and step == 6 and size == 2:
        with open(os.path.join(folder, "hosts.txt"), "w") as file:
            file.write("localhost:4")
        time.sleep(60)
    optimizer.zero_grad()
    x = torch.ones(4, 2)
    (ddp(x) - 1).square().mean().backward()
    optimizer.step()
    if rank == 0:
        state = {"step": step + 1, "model": model.state_dict()}
        torch.save(state, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_torch_script_restarts_with_other_sizes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hosts.txt").write_text("localhost:2")
    options = ["--min-np", "2", "--max-np", "4", "--max-restarts", "3"]
    discovery = ["--host-discovery-script", f"file:{tmp_path}/hosts.txt"]
    reported = run_command(tmp_path, *options, *discovery)
    starts = [json.loads(line) for line in (tmp_path / "starts").read_text().splitlines()]
    assert starts == [[0, "3", 2, 0], [1, "3", 2, 4], [1, "3", 4, 6]]
    assert "SIGKILL" in reported


def options(**values: Any) -> ElasticOptions:
    return ElasticOptions(**{"np": 2, "min_np": 2, "max_np": 4, **values})


def begun(hosts: dict[str, int], **values: Any) -> RestartingCoordinator:
    coordinator = RestartingCoordinator(options(**values), hosts, 0.0)
    kinds = [type(each) for each in coordinator.decide(0.0)]
    assert kinds.count(Start) >= 2
    assert kinds[-1] is Publish
    return coordinator


def test_a_loss_ends_a_program_without_memberships() -> None:
    coordinator = begun({"a": 2})
    assert coordinator.decide(1.0) == []
    coordinator.end(1, False, 2.0)
    (decision,) = coordinator.decide(2.0)
    assert isinstance(decision, GiveUp)


def test_a_program_with_memberships_continues_in_place() -> None:
    coordinator = begun({"a": 3})
    for process in range(3):
        coordinator.ready(process, 0, 0, 1.0)
    coordinator.end(1, False, 2.0)
    found: list[Decision] = coordinator.decide(2.0)
    assert not any(isinstance(each, GiveUp | Restart) for each in found)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ({"a": 2}, None),
        ({"a": 1}, None),  # fewer than min_np: a restart would not help
        ({"a": 2, "b": 1}, Restart(2, 3)),
        ({"a": 2, "b": 9}, Restart(2, 4)),
        ({"b": 2}, Restart(2, 2)),
    ],
)
def test_changed_hosts_restart_it(hosts: dict[str, int], expected: Restart | None) -> None:
    coordinator = begun({"a": 2})
    coordinator.list_hosts(hosts)
    assert coordinator.decide(5.0) == []
    assert coordinator.decide(5.0 + SETTLE) == ([] if expected is None else [expected])


def test_hosts_that_change_back_do_not_restart_it() -> None:
    coordinator = begun({"a": 2})
    for when, hosts in ((5.0, {"a": 2, "b": 1}), (6.0, {"a": 2}), (7.0, {"a": 2, "b": 1})):
        coordinator.list_hosts(hosts)
        assert coordinator.decide(when) == []
    assert coordinator.decide(5.0 + SETTLE) == []
    assert coordinator.decide(7.0 + SETTLE) == [Restart(2, 3)]


def test_a_restart_waits_for_min_np_and_leaves_lost_hosts_out(tmp_path: Path) -> None:
    plan = ElasticPlan(options(np=4), FixedHosts({"a": 2, "b": 2})).again("b")
    assert plan.options.np == 2
    assert isinstance(plan.discovery, FixedHosts)
    assert plan.discovery.find() == {"a": 2}
    assert plan.again().discovery is plan.discovery

    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho a:1\necho b:2\n")
    script.chmod(0o755)
    closed = ScriptDiscovery(str(script))
    closed.close()
    found = reopened(closed, "a")
    assert found.find() == {"b": 2}
    assert isinstance(found, WithoutHosts)
    found.close()
    assert reopened(found, "b").find() == {}
