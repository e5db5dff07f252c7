"""Workspaces, experiments and compute targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azureml.core import ComputeTarget, Experiment, Workspace
from azureml.core.compute import AmlCompute, ComputeInstance, DsvmCompute, RemoteCompute
from azureml.core.compute_target import ComputeTargetException
from azureml.exceptions import UserErrorException, WorkspaceException

from farandole.job.runs.home import RunsHome
from farandole.jobs import targets
from farandole.jobs.targets.contract import TargetSpec
from tests.compat_azureml.tools import python
from tests.kits.messages import mentioning, mentions


@pytest.fixture
def workspace(home: RunsHome, request: pytest.FixtureRequest) -> Workspace:
    return Workspace.create(request.function.__name__, exist_ok=True, show_output=False)


def test_config_is_found_upwards(home: RunsHome, tmp_path: Path) -> None:
    written = Workspace("sub", "group", "found")
    written.write_config(str(tmp_path))
    config = tmp_path / ".azureml" / "config.json"
    assert json.loads(config.read_text()) == {
        "subscription_id": "sub",
        "resource_group": "group",
        "workspace_name": "found",
    }
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for path in (inner, config):
        found = Workspace.from_config(str(path))
        assert (found.name, found.subscription_id, found.resource_group) == (
            *("found", "sub", "group"),
        )
    assert found == written
    (tmp_path / "a" / "config.json").write_text('{"subscription_id": "x"}')
    with pytest.raises(UserErrorException, match=mentioning("resource_group")):
        Workspace.from_config(str(inner))
    with pytest.raises(UserErrorException, match=mentioning("absent")):
        Workspace.from_config(str(tmp_path / "absent"))


def test_without_config_the_workspace_is_local(home: RunsHome, tmp_path: Path) -> None:
    program = (
        "from azureml.core import Workspace\n"
        "ws = Workspace.from_config(); Workspace.from_config()\n"
        "print(ws.name, ws.resource_group, ws.location, ws.sku, ws.tags, ws.compute_targets)"
    )
    done = python("-c", program, cwd=tmp_path)
    assert done.stdout == "local local local basic {} {}\n", done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert mentions(done.stderr, "config.json")


def test_workspaces_are_created_once(home: RunsHome, capsys: pytest.CaptureFixture[str]) -> None:
    made = Workspace.create("mine", location="westeurope", tags={"team": "x"})
    assert mentions(capsys.readouterr().out, "mine")
    assert (made.location, made.tags) == ("westeurope", {"team": "x"})
    with pytest.raises(WorkspaceException, match=mentioning("'mine'", "exist_ok=True")):
        Workspace.create("mine")
    assert Workspace.create("mine", exist_ok=True, show_output=False).location == "westeurope"
    assert [each.location for each in Workspace.list()["mine"]] == ["westeurope"]
    assert Workspace.get("mine").get_details()["name"] == "mine"
    with pytest.raises(UserErrorException, match=mentioning("'../x'")):
        Workspace.get("../x")


def test_experiments_are_listed_and_archived(workspace: Workspace) -> None:
    first, second = Experiment(workspace, "first"), Experiment(workspace, "second")
    assert first.id != second.id
    assert Experiment(workspace, "first").id == first.id
    first.tag("purpose", "test")
    first.set_tags({"more": "1"})
    assert first.remove_tags(["more"]) == {"purpose": "test"}
    second.archive()
    assert [each.name for each in Experiment.list(workspace)] == ["first"]
    assert [each.name for each in Experiment.list(workspace, view_type="All")] == [
        *("first", "second")
    ]
    assert [each.name for each in Experiment.list(workspace, tags={"purpose": "test"})] == ["first"]
    second.reactivate()
    assert set(workspace.experiments) == {"first", "second"}
    Experiment.delete(workspace, second.id)
    assert set(workspace.experiments) == {"first"}
    with pytest.raises(UserErrorException, match=mentioning("'third'")):
        first.reactivate("third")


@pytest.mark.parametrize("name", ["ab", "-abc", "a b c", "a" * 101, "über", ""])
def test_names_of_experiments_follow_the_rule(workspace: Workspace, name: str) -> None:
    with pytest.raises(UserErrorException, match=mentioning(repr(name), "3", "100")):
        Experiment(workspace, name)


def test_clusters_are_made_where_none_is_found(workspace: Workspace) -> None:
    with pytest.raises(ComputeTargetException) as raised:
        ComputeTarget(workspace=workspace, name="cpu-cluster")
    assert raised.value.message == (
        "ComputeTargetNotFound: Compute Target with name cpu-cluster not found in provided"
        " workspace"
    )
    configuration = AmlCompute.provisioning_configuration(
        vm_size="STANDARD_D2", min_nodes=1, max_nodes=4, idle_seconds_before_scaledown="2400"
    )
    assert AmlCompute.supported_vmsizes(workspace)[0]["vCPUs"] >= 1
    target = ComputeTarget.create(workspace, "cpu-cluster", configuration)
    target.wait_for_completion(show_output=False, min_node_count=None, timeout_in_minutes=20)
    status = target.get_status().serialize()
    assert status["scaleSettings"] == {
        "minNodeCount": 1,
        "maxNodeCount": 4,
        "nodeIdleTimeBeforeScaleDown": "PT2400S",
    }
    assert (status["vmSize"], status["provisioningState"]) == ("STANDARD_D2", "Succeeded")
    found = ComputeTarget(workspace, "cpu-cluster")
    assert (type(found), found.name, found.type) == (AmlCompute, "cpu-cluster", "AmlCompute")
    target.update(max_nodes=8)
    assert found.scale_settings.maximum_node_count == 8
    assert found.serialize()["properties"]["computeType"] == "AmlCompute"
    assert [each.name for each in workspace.compute_targets.values()] == ["cpu-cluster"]
    found.delete()
    assert workspace.compute_targets == {}


def test_targets_of_the_command_are_compute_targets(workspace: Workspace) -> None:
    home = workspace._home
    specs = {
        "cluster": TargetSpec("cluster", "slurm"),
        "lab": TargetSpec("lab", "ssh", options={"hosts": "a:2"}),
    }
    for spec in specs.values():
        targets.save_target(home, spec)
    assert {name: target.type for name, target in workspace.compute_targets.items()} == {
        "cluster": "Batch",
        "lab": "VirtualMachine",
    }
    for name in specs:
        ComputeTarget(workspace, name).delete()


def test_hosts_are_attached_by_ssh(workspace: Workspace) -> None:
    configuration = RemoteCompute.attach_configuration(
        username="me", address="10.0.0.1", ssh_port=2222, private_key_file="/key"
    )
    target = ComputeTarget.attach(workspace, "attached", configuration)
    assert isinstance(target, RemoteCompute)
    spec = targets.target_spec(workspace._home, "attached")
    assert (spec.kind, spec.options) == (
        "ssh",
        {"hosts": "me@10.0.0.1:8", "port": 2222, "identity": "/key"},
    )
    target.detach()
    with pytest.raises(ComputeTargetException, match=mentioning("private_key_file=")):
        RemoteCompute.attach_configuration("me", "host", password="secret")
    with pytest.raises(ComputeTargetException, match=mentioning("address=")):
        RemoteCompute.attach_configuration(resource_id="x")


def test_wrong_targets_are_refused(workspace: Workspace) -> None:
    with pytest.raises(ComputeTargetException, match=mentioning("min_nodes=3", "max_nodes=2")):
        AmlCompute.provisioning_configuration(min_nodes=3, max_nodes=2)
    with pytest.raises(ComputeTargetException, match=mentioning("'a b'")):
        ComputeTarget.create(workspace, "a b", AmlCompute.provisioning_configuration())
    with pytest.raises(ComputeTargetException, match=mentioning("RemoteCompute")):
        DsvmCompute.provisioning_configuration(vm_size="x")
    one = ComputeTarget.create(workspace, "one", ComputeInstance.provisioning_configuration("x"))
    assert isinstance(one, ComputeInstance)
    assert targets.target_spec(workspace._home, "one").max_nodes == 1
    one.delete()
