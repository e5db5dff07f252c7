"""Datasets, datastores and outputs, as a client of a workspace uses them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azureml._farandole.arguments import translated
from azureml.core import (
    ComputeTarget,
    Dataset,
    Datastore,
    Experiment,
    ScriptRunConfig,
    Workspace,
)
from azureml.core.compute import RemoteCompute
from azureml.data import DataPath, FileDataset, OutputFileDatasetConfig
from azureml.data.dataset_error_handling import DatasetExecutionError, DatasetValidationError
from azureml.exceptions import UserErrorException

from farandole.job.runs.home import RunsHome
from tests.compat_azureml.data import write, zipped
from tests.kits.messages import mentioning
from tests.kits.web import web_server


@pytest.fixture(scope="module")
def workspace(home: RunsHome) -> Any:
    return Workspace("subscription", "group", "data")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    zipped(tmp_path / "web" / "x" / "data.zip", **{"a.txt": "1"})
    with web_server(tmp_path / "web") as url:
        yield url


def test_a_datastore_is_shown_without_its_path(workspace: Any) -> None:
    shown = repr(workspace.get_default_datastore())
    assert "'workspaceblobstore'" in shown
    assert "AzureBlob" in shown
    assert RunsHome().path not in shown


def test_one_file_is_the_file_itself(tmp_path: Path, web: str) -> None:
    dataset = Dataset.File.from_files(path=f"{web}/x/data.zip")
    assert dataset.to_path() == ["/data.zip"]
    (copy,) = dataset.download(str(tmp_path / "copy"))
    assert copy == str(tmp_path / "copy" / "data.zip")
    assert Path(copy).read_bytes() == (tmp_path / "web/x/data.zip").read_bytes()
    with pytest.raises(DatasetExecutionError, match=mentioning(copy, "overwrite=True")):
        dataset.download(str(tmp_path / "copy"))
    assert dataset.download(str(tmp_path / "copy"), overwrite=True) == [copy]
    assert dataset._run_input_source() == f"{web}/x/data.zip"
    local = Dataset.File.from_files(f"file://{tmp_path}/web/x/data.zip")
    assert local._run_input_source() == str(tmp_path / "web/x/data.zip")


def test_several_files_are_a_folder(tmp_path: Path, web: str) -> None:
    for name in ("a/1.csv", "a/b/2.csv", "a/3.txt", "other/4.csv"):
        write(tmp_path / "store" / name, name)
    whole = Dataset.File.from_files(str(tmp_path / "store"))
    assert whole.to_path() == ["/a/1.csv", "/a/3.txt", "/a/b/2.csv", "/other/4.csv"]
    assert whole._run_input_source() == str(tmp_path / "store")
    pattern = Dataset.File.from_files(f"{tmp_path}/store/a/*.csv")
    folder = Path(pattern._run_input_source())
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("1.csv", "a/1.csv")]
    listed = Dataset.File.from_files(
        [str(tmp_path / "store/a/1.csv"), str(tmp_path / "store/other"), f"{web}/x/data.zip"]
    )
    copies = listed.download(str(tmp_path / "all"))
    assert [Path(each).name for each in copies] == ["1.csv", "4.csv", "data.zip"]
    two = whole.skip(1).take(2)
    assert two.to_path() == ["/a/3.txt", "/a/b/2.csv"]
    first, rest = whole.random_split(0.5, seed=1)
    assert sorted(first.to_path() + rest.to_path()) == sorted(whole.to_path())
    assert (
        first.random_split(0.5, seed=1)[0].to_path() == first.random_split(0.5, seed=1)[0].to_path()
    )


def test_files_that_do_not_exist_are_refused(tmp_path: Path, web: str) -> None:
    for source in (str(tmp_path / "no.csv"), f"{web}/no.csv", "moon://x/y"):
        with pytest.raises(DatasetValidationError, match=mentioning(source)):
            Dataset.File.from_files(source)
    with pytest.raises(UserErrorException, match=mentioning("7")):
        Dataset.File.from_files(7)


def test_a_mount_is_at_its_mount_point(tmp_path: Path, web: str) -> None:
    dataset = Dataset.File.from_files(f"{web}/x/data.zip")
    with dataset.mount(str(tmp_path / "point")) as mount:
        assert mount.mount_point == str(tmp_path / "point" / "data.zip")
        assert os.path.getsize(mount.mount_point) == os.path.getsize(tmp_path / "web/x/data.zip")
    assert os.listdir(tmp_path / "point") == []
    for name in ("1.txt", "b/2.txt"):
        write(tmp_path / "store" / name, name)
    mount = Dataset.File.from_files(str(tmp_path / "store")).mount()
    mount.start()
    assert sorted(os.listdir(mount.mount_point)) == ["1.txt", "b"]
    mount.stop()
    assert not os.path.exists(mount.mount_point)
    assert (tmp_path / "store" / "1.txt").read_text() == "1.txt"


def test_names_and_versions_of_datasets(workspace: Any, tmp_path: Path) -> None:
    one = Dataset.File.from_files(str(write(tmp_path / "1.txt", "1")))
    two = Dataset.File.from_files(str(write(tmp_path / "2.txt", "2")))
    with pytest.raises(UserErrorException, match=mentioning("'numbers'", "'data'")):
        Dataset.get_by_name(workspace, "numbers")
    first = one.register(workspace, "numbers", description="of files", tags={"kind": "text"})
    assert (first.name, first.version, first.id) == ("numbers", 1, one.id)
    assert one.register(workspace, "numbers").version == 1
    with pytest.raises(
        UserErrorException, match=mentioning("'numbers'", "create_new_version=True")
    ):
        two.register(workspace, "numbers")
    two.register(workspace, "numbers", create_new_version=True)
    newest = Dataset.get_by_name(workspace, name="numbers")
    assert (newest.version, newest.to_path()) == (2, ["/2.txt"])
    old = Dataset.get_by_name(workspace, "numbers", version=1)
    assert (old.to_path(), old.description, old.tags) == (["/1.txt"], "of files", {"kind": "text"})
    with pytest.raises(UserErrorException, match=mentioning("'numbers'", "3")):
        Dataset.get_by_name(workspace, "numbers", version=3)
    assert Dataset.get_by_id(workspace, two.id).to_path() == ["/2.txt"]
    assert Dataset.get_all(workspace)["numbers"].version == 2
    old.add_tags({"more": "1"})
    assert Dataset.get_by_name(workspace, "numbers", 1).tags == {"kind": "text", "more": "1"}
    newest.unregister_all_versions()
    assert "numbers" not in Dataset.get_all(workspace)


def test_the_default_datastore_is_a_folder(workspace: Any, tmp_path: Path) -> None:
    write(tmp_path / "source" / "a" / "1.txt", "1")
    write(tmp_path / "source" / "2.csv", "2")
    store = workspace.get_default_datastore()
    assert (store.name, store.datastore_type) == ("workspaceblobstore", "AzureBlob")
    store.upload(str(tmp_path / "source"), "there", show_progress=False)
    assert Dataset.File.from_files((store, "there")).to_path() == ["/2.csv", "/a/1.txt"]
    assert Dataset.File.from_files(DataPath(store, "there/*.csv")).to_path() == ["/2.csv"]
    assert store.download(str(tmp_path / "back"), "there", show_progress=False) == 2
    assert (tmp_path / "back" / "there" / "a" / "1.txt").read_text() == "1"
    dataset = Dataset.File.upload_directory(
        str(tmp_path / "source"), (store, "again"), pattern="*.csv", show_progress=False
    )
    assert isinstance(dataset, FileDataset)
    assert dataset.to_path() == ["/2.csv"]
    with pytest.raises(UserErrorException, match=mentioning("'../../x'")):
        store.upload(str(tmp_path / "source"), "../../x")
    outside = str(write(tmp_path / "outside.txt", "3"))
    inside = str(tmp_path / "source" / "2.csv")
    with pytest.raises(UserErrorException, match=mentioning("outside.txt", "relative_root")):
        store.upload_files([inside, outside], str(tmp_path / "source"), "deep/er")
    with pytest.raises(UserErrorException, match=mentioning("deep")):
        Dataset.File.from_files((store, "deep")).to_path()


def test_datastores_of_folders_and_urls(workspace: Any, tmp_path: Path, web: str) -> None:
    with pytest.raises(UserErrorException, match=mentioning("'team'", "register_url")):
        Datastore.get(workspace, "team")
    Datastore.register_url(workspace, "team", f"{web}/x")
    team = workspace.datastores["team"]
    assert Dataset.File.from_files((team, "data.zip")).to_path() == ["/data.zip"]
    with pytest.raises(UserErrorException, match=mentioning("'team'", f"{web}/x")):
        team.upload_files([__file__])
    blob = Datastore.register_azure_blob_container(
        workspace, "blob", container_name="c", account_name="a", account_key="secret"
    )
    assert blob.root == "abfs://c@a.blob.core.windows.net"
    stored = Path(RunsHome().path).rglob("*blob*.json")
    assert all("secret" not in each.read_text() for each in stored)
    team.set_as_default()
    assert workspace.get_default_datastore().name == "team"
    for each in (blob, team):
        each.unregister()
    assert workspace.get_default_datastore().name == "workspaceblobstore"
    assert set(workspace.datastores) == {"workspaceblobstore", "workspacefilestore"}


def test_an_output_is_a_folder_of_a_datastore(workspace: Any) -> None:
    store = workspace.get_default_datastore()
    config = OutputFileDatasetConfig("found", (store, "out/{run-id}/{output-name}")).as_mount()
    with pytest.raises(UserErrorException, match=mentioning("'found'")):
        config.as_input()
    output = config._run_output("e_1_a")
    assert (output.name, output.path) == ("found", store._local_folder("out/e_1_a/found"))
    write(Path(output.path) / "1.txt", "1")
    assert config.as_input("data").dataset.to_path() == ["/1.txt"]
    assert OutputFileDatasetConfig()._run_output("e_1_a").path.startswith(RunsHome().path)


def test_other_hosts_get_copies_of_local_files(workspace: Any, tmp_path: Path, web: str) -> None:
    local = Dataset.File.from_files(str(write(tmp_path / "1.txt", "1")))
    far = Dataset.File.from_files(f"{web}/x/data.zip")
    given = [local.as_named_input("near").as_mount(), far.as_named_input("far").as_download()]
    arguments = translated(given, [local.as_named_input("itself")], "e_1_a")
    assert arguments.words == ["{near}", "{far}"]
    here = arguments.input_specs()
    assert (here["near"].source, here["near"].mode) == (str(tmp_path / "1.txt"), "mount")
    there = arguments.input_specs(elsewhere=True)
    assert there["near"].source == f"file://{tmp_path}/1.txt"
    assert there["far"] == here["far"]
    assert set(there) == {"near", "far"}


def test_an_output_needs_a_target_on_this_host(workspace: Any, tmp_path: Path) -> None:
    write(tmp_path / "train.py", "")
    lab = RemoteCompute.attach_configuration(username="user", address="gpu1")
    ComputeTarget.attach(workspace, "lab", lab)
    output = OutputFileDatasetConfig("found").as_upload()
    config = ScriptRunConfig(str(tmp_path), "train.py", [output], compute_target="lab")
    with pytest.raises(UserErrorException, match=mentioning("'found'", "'lab'", "./outputs")):
        Experiment(workspace, "outputs").submit(config)


def test_credentials_are_not_in_messages(workspace: Any, tmp_path: Path, web: str) -> None:
    query = "sig=hunter2"
    with pytest.raises(DatasetValidationError) as caught:
        Dataset.File.from_files(f"{web}/no.zip?{query}")
    dataset = Dataset.File.from_files(f"{web}/x/data.zip?{query}")
    assert dataset.to_path() == ["/data.zip"]
    (tmp_path / "web/x/data.zip").unlink()
    with pytest.raises(DatasetExecutionError) as also:
        dataset.download(str(tmp_path / "copy"))
    shown = [*traceback.format_exception(caught.value), *traceback.format_exception(also.value)]
    assert "hunter2" not in "".join([*shown, repr(dataset)])


def test_the_text_of_a_reference_is_its_path(workspace: Any) -> None:
    reference = workspace.get_default_datastore().path("there", "digits").as_mount()
    arguments = translated(["--data", str(reference), "$HOME"], [reference.to_config()], "e_1_a")
    assert arguments.words == ["--data", "{AZUREML_DATAREFERENCE_digits}", "$HOME"]
    assert arguments.shown[1] == "$AZUREML_DATAREFERENCE_digits"
    assert set(arguments.input_specs()) == {"AZUREML_DATAREFERENCE_digits"}
