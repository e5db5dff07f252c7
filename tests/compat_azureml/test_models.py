"""Models, secrets, credentials and telemetry of a workspace."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from azureml.core import Keyvault, Model, Workspace
from azureml.core.authentication import InteractiveLoginAuthentication
from azureml.exceptions import (
    ModelNotFoundException,
    ModelPathNotFoundException,
    UserErrorException,
)
from azureml.telemetry import set_diagnostics_collection

from farandole.job.runs.home import RunsHome
from tests.compat_azureml.data import write
from tests.kits.messages import mentioning


@pytest.fixture(scope="module")
def workspace(home: RunsHome) -> Any:
    return Workspace("subscription", "group", "models")


def test_a_model_has_versions(
    workspace: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "model.pt", "one"))
    first = Model.register(
        workspace, model_path=path, model_name="digits", tags={"auc": "0.9"}, description="small"
    )
    assert capsys.readouterr().out == "Registering model digits\n"
    write(tmp_path / "model.pt", "two")
    second = Model.register(workspace, path, "digits")
    assert (first.id, second.id) == ("digits:1", "digits:2")
    assert (first.description, first.tags, second.tags) == ("small", {"auc": "0.9"}, {})
    assert Path(Model.get_model_path("digits", _workspace=workspace)).read_text() == "two"
    assert Path(Model.get_model_path("digits", 1, workspace)).read_text() == "one"
    assert Model(workspace, "digits").version == 2
    assert Model(workspace, "digits", tags=[["auc", "0.9"]]).version == 1
    assert Model(workspace, id="digits:1").version == 1
    assert [each.id for each in Model.list(workspace, "digits")] == ["digits:2", "digits:1"]
    assert workspace.models["digits"].version == 2
    copy = first.download(str(tmp_path / "copies"))
    assert (os.path.basename(copy), Path(copy).read_text()) == ("model.pt", "one")
    with pytest.raises(ModelPathNotFoundException, match=mentioning(copy, "exist_ok=True")):
        first.download(str(tmp_path / "copies"))
    second.delete()
    assert Model(workspace, "digits").version == 1


def test_a_model_may_be_a_folder(workspace: Any, tmp_path: Path) -> None:
    for name in ("a/1.txt", "2.txt"):
        write(tmp_path / "saved" / name, name)
    model = Model.register(workspace, str(tmp_path / "saved"), "folder")
    copy = Path(model.download(str(tmp_path / "copies")))
    assert sorted(str(each.relative_to(copy)) for each in copy.rglob("*.txt")) == [
        "2.txt",
        "a/1.txt",
    ]
    part = Model.register(
        workspace, str(tmp_path / "saved"), "part", child_paths=["a/1.txt"], model_framework="Onnx"
    )
    assert part.model_framework == "Onnx"
    assert os.listdir(Model.get_model_path("part", _workspace=workspace)) == ["a"]


def test_models_that_do_not_exist(workspace: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundException, match=mentioning("'other'")):
        Model(workspace, "other")
    with pytest.raises(ModelPathNotFoundException, match=mentioning(str(tmp_path / "no.pt"))):
        Model.register(workspace, str(tmp_path / "no.pt"), "no")
    with pytest.raises(UserErrorException, match=mentioning("'../x'")):
        Model.register(workspace, str(write(tmp_path / "m.pt", "")), "../x")


def test_secrets_are_variables_or_a_private_file(
    workspace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = workspace.get_default_keyvault()
    assert isinstance(vault, Keyvault)
    with pytest.raises(UserErrorException, match=mentioning("'db-password'", "DB_PASSWORD")):
        vault.get_secret("db-password")
    vault.set_secret(name="db-password", value="stored")
    assert vault.get_secret(name="db-password") == "stored"
    assert vault.list_secrets() == [{"name": "db-password"}]
    files = [each for each in Path(RunsHome().path).rglob("*") if each.is_file()]
    (holder,) = [each for each in files if "stored" in each.read_text(errors="replace")]
    assert stat.S_IMODE(holder.stat().st_mode) == 0o600
    monkeypatch.setenv("DB_PASSWORD", "variable")
    assert vault.get_secrets(["db-password"]) == {"db-password": "stored"}
    monkeypatch.setenv("USER", "someone")
    vault.set_secret("user", "sa")
    assert vault.get_secret("user") == "sa"
    vault.delete_secrets(["db-password", "user"])
    assert vault.get_secret("db-password") == "variable"
    assert vault.list_secrets() == []


def test_credentials_and_telemetry_need_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        InteractiveLoginAuthentication(tenant_id="tenant")
        set_diagnostics_collection(send_diagnostics=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "InteractiveLoginAuthentication" in lines[0]
