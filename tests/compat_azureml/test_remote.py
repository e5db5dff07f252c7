"""Runs on hosts reached by ssh, which share no file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat_azureml.tools import SOURCE
from tests.kits.hosts import Hosts, hosts
from tests.kits.messages import mentions

pytestmark = pytest.mark.slow

# The notebook of a user, on the first host.
SUBMIT = """
import sys
from azureml.core import ComputeTarget, Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import RemoteCompute
from azureml.core.runconfig import MpiConfiguration
from farandole.jobs import targets
from farandole.jobs.targets.contract import TargetSpec

ws = Workspace("s", "g", "here")
options = {"hosts": "a:1,b:1", "ssh_options": sys.argv[2]}
targets.save_target(ws._home, TargetSpec("lab", "ssh", options=options))
target = ComputeTarget(ws, "lab")
print(target.type, isinstance(target, RemoteCompute))
job = MpiConfiguration(node_count=2)
config = ScriptRunConfig(sys.argv[1], "train.py", compute_target=target, distributed_job_config=job)
run = Experiment(ws, "remote").submit(config)
details = run.wait_for_completion(show_output=True)
print(details["status"], details["properties"]["_azureml.ComputeTargetType"])
print(run.get_file_names())
print(sorted(run.get_metrics()["rank"]))
"""
TRAIN = """
import os, socket
import farandole.numpy as hvd
from azureml.core import Run

hvd.init()
run = Run.get_context()
run.log("rank", hvd.rank())
print(socket.gethostname(), run.id == os.environ["AZUREML_RUN_ID"], run.experiment.workspace.name)
for folder in ("outputs", "logs"):
    with open(f"{folder}/{socket.gethostname()}.txt", "w") as file:
        file.write("text")
hvd.barrier()
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Hosts]:
    with hosts(2) as made:
        yield made


def test_files_and_metrics_of_all_hosts_come_back(two: Hosts, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(TRAIN)
    (tmp_path / "home").mkdir(mode=0o700)
    two[1].run("mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "home"))
    variables = [
        f"FARANDOLE_HOME={tmp_path}/home",
        f"XDG_STATE_HOME={tmp_path}/state",
        f"PYTHONPATH={os.pathsep.join(filter(None, [str(SOURCE), *sys.path]))}",
    ]
    words = [sys.executable, "-c", SUBMIT, str(tmp_path / "project"), f"-F {two.config}"]
    command = two[0].command("env", *variables, *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert mentions(out, "VirtualMachine True")
    assert mentions(out, "a True here")
    assert mentions(out, "Completed virtualmachine")
    assert mentions(out, "'logs/a.txt'", "'logs/b.txt'", "'outputs/a.txt'", "'outputs/b.txt'")
    assert mentions(out, "[0.0, 1.0]")
