"""``Datastore``: named folders and URLs of a workspace.

The default datastore ``workspaceblobstore`` is a folder of the workspace on this host. Others are
files ``<name>.json`` with a URL, which the ``register_*`` methods write.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Sequence
from typing import Any

from azureml._farandole.texts import notice, say
from azureml.data import _files
from azureml.data._files import DatasetDefinition
from azureml.data._storage import checked_name, json_names, workspace_folder
from azureml.data.data_reference import DataReference
from azureml.exceptions import UserErrorException
from farandole.job.runs.folder import read_json, write_json
from farandole.jobs.inputs.sources import is_url

DEFAULT = "workspaceblobstore"
_BUILT_IN = {DEFAULT: "AzureBlob", "workspacefilestore": "AzureFile"}


class Datastore:
    """A named folder or URL. ``Datastore(workspace, name)`` opens an existing one."""

    def __init__(self, workspace: Any, name: str | None = None, **_: Any) -> None:
        """Open a datastore of a workspace, by default the default one.

        Raises UserErrorException if the workspace has no datastore ``name``.
        """
        self.workspace = workspace
        self.name = name or _default_name(workspace)
        facts = _facts(workspace, self.name)
        self.datastore_type = facts["type"]
        self.root = facts["root"]
        self.account_name = facts.get("account")
        self.container_name = facts.get("container", self.name)

    @staticmethod
    def get(workspace: Any, datastore_name: str) -> Datastore:
        """Return a datastore. Raises UserErrorException if there is none of this name."""
        return Datastore(workspace, datastore_name)

    @staticmethod
    def get_default(workspace: Any) -> Datastore:
        """Return the default datastore of a workspace."""
        return Datastore(workspace)

    @staticmethod
    def _all(workspace: Any) -> dict[str, Datastore]:
        """Return all datastores of a workspace by name."""
        names = [*_BUILT_IN, *json_names(_folder(workspace))]
        return {name: Datastore(workspace, name) for name in names}

    @staticmethod
    def register_azure_blob_container(
        workspace: Any,
        datastore_name: str,
        container_name: str,
        account_name: str,
        sas_token: str | None = None,
        account_key: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        **_: Any,
    ) -> Datastore:
        """Register a container of Azure Blob Storage, which runs read through ``adlfs``.

        Credentials are not stored: set ``AZURE_STORAGE_ACCOUNT_KEY`` or
        ``AZURE_STORAGE_SAS_TOKEN``. ``endpoint``: the suffix of the host, by default
        ``core.windows.net``. An existing datastore of the name is replaced. Raises
        UserErrorException for an invalid name.
        """
        _without_credentials(sas_token or account_key)
        host = f"{account_name}.blob.{endpoint or 'core.windows.net'}"
        facts = {
            "type": "AzureBlob",
            "root": f"abfs://{container_name}@{host}",
            "account": account_name,
            "container": container_name,
        }
        return _register(workspace, datastore_name, facts)

    @staticmethod
    def register_azure_data_lake_gen2(
        workspace: Any,
        datastore_name: str,
        filesystem: str,
        account_name: str,
        tenant_id: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        **_: Any,
    ) -> Datastore:
        """Register a file system of Azure Data Lake, which runs read through ``adlfs``.

        Credentials are not stored: set ``AZURE_STORAGE_TENANT_ID``, ``AZURE_STORAGE_CLIENT_ID`` and
        ``AZURE_STORAGE_CLIENT_SECRET``. An existing datastore of the name is replaced. Raises
        UserErrorException for an invalid name.
        """
        _without_credentials(client_secret)
        facts = {
            "type": "AzureDataLakeGen2",
            "root": f"abfss://{filesystem}@{account_name}.dfs.core.windows.net",
            "account": account_name,
            "container": filesystem,
        }
        return _register(workspace, datastore_name, facts)

    @staticmethod
    def register_url(workspace: Any, datastore_name: str, url: str) -> Datastore:
        """Register a folder or a URL that fsspec reads. Azure ML has no such method.

        Raises UserErrorException for an invalid name.
        """
        root = url if is_url(url) else os.path.abspath(os.path.expanduser(url))
        return _register(workspace, datastore_name, {"type": "Custom", "root": root})

    def set_as_default(self) -> None:
        """Make this datastore the default one of its workspace."""
        write_json(os.path.join(_folder(self.workspace), "default"), {"name": self.name})

    def unregister(self) -> None:
        """Remove the name of the datastore. Its files are kept.

        If it is the default datastore, ``workspaceblobstore`` becomes the default again.
        Raises UserErrorException for a datastore that belongs to the workspace.
        """
        if self.name in _BUILT_IN:
            raise UserErrorException(f"the datastore {self.name!r} belongs to the workspace")
        if _default_name(self.workspace) == self.name:
            os.unlink(os.path.join(_folder(self.workspace), "default"))
        os.unlink(os.path.join(_folder(self.workspace), f"{self.name}.json"))

    def path(
        self, path: str | None = None, data_reference_name: str | None = None
    ) -> DataReference:
        """Return a path in the datastore as an argument of a script."""
        return DataReference(self, data_reference_name, path)

    def as_mount(self) -> DataReference:
        """Return the whole datastore as an argument of a script."""
        return self.path().as_mount()

    def as_download(self, path_on_compute: str | None = None) -> DataReference:
        """Return a copy of the whole datastore as an argument of a script."""
        return self.path().as_download(path_on_compute)

    def upload(
        self,
        src_dir: str,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> DataReference:
        """Copy the folder ``src_dir`` below the path ``target_path`` of the datastore.

        Existing files are kept unless ``overwrite``. Raises UserErrorException if the folder has no
        files, or the datastore is not on this host.
        """
        files = [
            os.path.join(where, name) for where, _, names in os.walk(src_dir) for name in names
        ]
        if not files:
            raise UserErrorException(f"the folder src_dir={src_dir!r} has no files")
        return self.upload_files(sorted(files), src_dir, target_path, overwrite, show_progress)

    def upload_files(
        self,
        files: Sequence[str],
        relative_root: str | None = None,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> DataReference:
        """Copy files below the path ``target_path`` of the datastore.

        Arguments:
            files: The paths of the files.
            relative_root: The folder to which the names in the datastore are relative; by default
                the deepest common folder.
            target_path: A path in the datastore.
            overwrite: Replace existing files; else they are kept.
            show_progress: Print the names of the files.

        Raises UserErrorException if the datastore is not on this host, or if a file is outside of
        ``relative_root``.
        """
        into = self._local_folder(target_path or "")
        root = relative_root or os.path.commonpath(
            [os.path.dirname(os.path.abspath(each)) for each in files]
        )
        names = [os.path.relpath(each, root) for each in files]
        for each, name in zip(files, names, strict=True):
            if name.split(os.sep)[0] == os.pardir:
                raise UserErrorException(
                    f"the file {each!r} is not in relative_root={root!r}; choose a folder that"
                    " holds all files"
                )
        for number, (each, name) in enumerate(zip(files, names, strict=True), 1):
            target = os.path.join(into, name)
            if os.path.exists(target) and not overwrite:
                _show(show_progress, f"Target already exists. Skipping upload for {each}")
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(each, target)
            _show(show_progress, f"Uploaded {each}, {number} files out of {len(files)}")
        return self.path(target_path)

    def download(
        self,
        target_path: str,
        prefix: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> int:
        """Copy the files below ``prefix`` to the folder ``target_path`` and return their number.

        Raises DatasetExecutionError if there are no files, or if a copy exists and ``overwrite`` is
        False.
        """
        given = DatasetDefinition("file", (self._source(prefix or ""),))
        into = os.path.join(target_path, prefix or "")
        found = _files.download(given, into, overwrite=overwrite, what="datastore")
        for path in found:
            _show(show_progress, f"Downloaded {path}")
        return len(found)

    def _source(self, path: str) -> str:
        """Return the path or URL of a path in the datastore."""
        below = _inside(path)
        return f"{self.root.rstrip('/')}/{below}" if below else self.root

    def _local_folder(self, path: str) -> str:
        """Return the local path of a path in the datastore.

        Raises UserErrorException if the datastore is not on this host.
        """
        here = _files.plain_path(self.root)
        if here is None:
            raise UserErrorException(
                f"the datastore {self.name!r} ({self.root}) can only be read from here; write to"
                f" the datastore {DEFAULT!r}, or copy the files with the store's own tool"
            )
        return os.path.join(here, _inside(path)).rstrip("/")

    def __repr__(self) -> str:
        # Without the root: an output of a notebook's cell holds no path of the host.
        return f"Datastore(name={self.name!r}, datastore_type={self.datastore_type!r})"


def _inside(path: str) -> str:
    found = posixpath.normpath(path.replace("\\", "/").strip("/") or ".")
    if found == ".." or found.startswith("../"):
        raise UserErrorException(f"the path {path!r} leads out of the datastore")
    return "" if found == "." else found


def _facts(workspace: Any, name: str) -> dict[str, Any]:
    if name in _BUILT_IN:
        return {"type": _BUILT_IN[name], "root": workspace_folder(workspace, "data", name)}
    found = read_json(os.path.join(_folder(workspace), f"{os.path.basename(name)}.json"))
    if found is None:
        known = ", ".join([*_BUILT_IN, *json_names(_folder(workspace))])
        raise UserErrorException(
            f"there is no datastore {name!r} in the workspace {workspace.name!r} (there are:"
            f" {known}); register one with Datastore.register_url(workspace, {name!r}, url)"
        )
    return found


def _register(workspace: Any, name: str, facts: dict[str, Any]) -> Datastore:
    if name in _BUILT_IN:
        raise UserErrorException(f"the datastore {name!r} belongs to the workspace")
    checked_name(name, "datastore")
    write_json(os.path.join(_folder(workspace), f"{name}.json"), facts)
    return Datastore(workspace, name)


def _default_name(workspace: Any) -> str:
    chosen = read_json(os.path.join(_folder(workspace), "default")) or {}
    return str(chosen.get("name", DEFAULT))


def _folder(workspace: Any) -> str:
    return workspace_folder(workspace, "datastores")


def _without_credentials(given: str | None) -> None:
    if given:
        notice(
            "credentials of a datastore are not stored; set AZURE_STORAGE_ACCOUNT_KEY,"
            " AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CLIENT_SECRET, which adlfs reads"
        )


def _show(wanted: bool, text: str) -> None:
    if wanted:
        say(text)
