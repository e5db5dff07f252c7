"""The metrics, the files and the data of a run."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from azureml._farandole import journal
from azureml._farandole.definition import FILE, INTERACTIVE
from azureml._farandole.details import snapshot_id
from azureml._farandole.errors import raised_as
from azureml._farandole.files import RunFiles
from azureml._farandole.run_logging import RunLogging
from azureml.exceptions import SnapshotException, UserErrorException
from farandole.job.runs.folder import RunFolder, read_json
from farandole.job.runs.home import RunsHome
from farandole.job.tracking import files
from farandole.jobs import follow


class RunData(RunLogging):
    """The methods of a run that read and write its data."""

    @property
    @abstractmethod
    def _folder(self) -> RunFolder:
        """The folder of the run."""

    @property
    @abstractmethod
    def experiment(self) -> Any:
        """The experiment of the run."""

    # --- metrics

    def _record(self, kind: str, name: str, value: Any, step: int | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise UserErrorException(f"the metric's name must be a non-empty string: {name!r}")
        if kind == "scalar":
            journal.add_value(self._folder, name, value, step)
        elif kind == "list":
            journal.add_list(self._folder, name, value)
        elif kind in ("row", "table"):
            try:
                journal.add_table(self._folder, name, value, kind)
            except (TypeError, ValueError) as error:
                raise UserErrorException(str(error)) from error
        elif kind == "image":
            self._add_image(name, value)
        else:
            file = f"{name}.json"
            RunFiles(self._folder).write(file, json.dumps(value).encode())
            journal.add_reference(self._folder, name, self._uri(file))

    def _add_image(self, name: str, image: Any) -> None:
        """Keep an image, given as a path or a figure, and record its address."""
        run_files = RunFiles(self._folder)
        if isinstance(image, (str, os.PathLike)):
            ending = os.path.splitext(image)[1] or ".png"
            file = f"{name}_{time.time():.0f}{ending}"
            run_files.upload(file, os.fspath(image))
        else:
            ending, save = files.figure_writer(image)
            file = f"{name}_{time.time():.0f}{ending}"
            run_files.save(file, save)
        journal.add_reference(self._folder, name, self._uri(file))

    def _uri(self, file: str) -> str:
        return f"aml://artifactId/ExperimentRun/dcid.{self._folder.run_id}/{file}"

    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics of all ranks by name.

        The value of a name that was logged once is this value; of a name that was logged several
        times, a list in the order of time; of a table, a dict of its columns.

        Arguments:
            name: The name of one metric; None for all.
            recursive: Return a dict of such metrics for this run and its descendants, by run id.
            run_type: The type of the descendants; None for all.
            populate: Not used.
        """
        own = journal.values(self._folder)
        if name is not None:
            own = {key: value for key, value in own.items() if key == name}
        if not recursive:
            return own
        found = {self._folder.run_id: own}
        for child in self._descendants(run_type):
            found[child.id] = child.get_metrics(name)
        return found

    def _descendants(self, run_type: str | None) -> Any:
        return self.get_children(recursive=True, type=run_type)  # type: ignore[attr-defined]

    # --- files

    def upload_file(self, name: str, path_or_stream: Any, **kwargs: Any) -> None:
        """Keep a file in the run.

        Arguments:
            name: The name of the file in the run, such as ``outputs/model.pkl``.
            path_or_stream: A path, or a stream of bytes.

        Raises UserErrorException if the file does not exist, or the name leads out of the run.
        """
        run_files = RunFiles(self._folder)
        if hasattr(path_or_stream, "read"):
            data = path_or_stream.read()
            run_files.write(name, data.encode() if isinstance(data, str) else data)
        else:
            run_files.upload(name, os.path.abspath(path_or_stream))

    def upload_files(self, names: list[str], paths: list[str], **kwargs: Any) -> None:
        """Keep several files in the run: ``paths`` under the ``names`` of the same length.

        Raises UserErrorException for other lengths, and as ``upload_file``.
        """
        if len(names) != len(paths):
            raise UserErrorException(
                f"upload_files needs as many names as paths: {len(names)} names, {len(paths)} paths"
            )
        for name, path in zip(names, paths, strict=True):
            self.upload_file(name, path)

    def upload_folder(self, name: str, path: str, **kwargs: Any) -> None:
        """Keep all files of the folder ``path`` in the run, under the folder ``name``.

        Raises UserErrorException if the folder does not exist, or the name leads out of the run.
        """
        if not os.path.isdir(path):
            raise UserErrorException(f"the folder {path!r} does not exist")
        for where, _, names in os.walk(path):
            for each in sorted(names):
                inner = os.path.relpath(os.path.join(where, each), path)
                self.upload_file(os.path.join(name, inner), os.path.join(where, each))

    def get_file_names(self) -> list[str]:
        """Return the names of the run's files."""
        return list(RunFiles(self._folder).paths())

    def download_file(self, name: str, output_file_path: str | None = None, **kwargs: Any) -> None:
        """Copy the file ``name`` of the run.

        ``output_file_path``: the path of the copy, or an existing folder; by default the current
        folder. Raises UserErrorException if the run has no such file.
        """
        target = output_file_path or os.path.basename(name)
        if os.path.isdir(target) or target.endswith(os.sep):
            target = os.path.join(target, os.path.basename(name))
        path = RunFiles(self._folder).path(name)
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        shutil.copyfile(path, target)

    def download_files(
        self,
        prefix: str | None = None,
        output_directory: str | None = None,
        output_paths: list[str] | None = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        **kwargs: Any,
    ) -> None:
        """Copy all files of the run whose names begin with ``prefix``.

        Arguments:
            prefix: The beginning of the names; None for all files.
            output_directory: The folder of the copies, by default the current one.
            output_paths: The path of each copy, in the order of ``get_file_names()``.
            batch_size: Not used.
            append_prefix: Keep the prefix in the names of the copies; False removes its folders,
                so that ``outputs/ckpt`` gives ``ckpt-1.pt``.

        Raises UserErrorException if ``output_paths`` has a different length than the files.
        """
        names = [name for name in self.get_file_names() if name.startswith(prefix or "")]
        if output_paths is not None and len(output_paths) != len(names):
            raise UserErrorException(
                f"output_paths has {len(output_paths)} paths for {len(names)} files: {names[:10]}"
            )
        above = "" if append_prefix else _common_folder(prefix or "", names)
        for number, name in enumerate(names):
            shown = name.removeprefix(above)
            place = output_paths[number] if output_paths is not None else shown
            self.download_file(name, os.path.join(output_directory or ".", place))

    def get_all_logs(self, destination: str | None = None) -> list[str]:
        """Copy all logs into a folder, by default ``assets/<run id>``, and return their paths."""
        folder = destination or os.path.join("assets", self._folder.run_id)
        copies = []
        for name in RunFiles(self._folder).log_urls():
            copies.append(os.path.join(folder, name))
            self.download_file(name, copies[-1])
        return copies

    def _text_of(self, name: str) -> str:
        return follow.LogReader(RunFiles(self._folder).path(name)).read()

    def _model_files(self, name: str) -> str:
        """Return the path of a file or folder of the run.

        Raises UserErrorException if there is none with this name.
        """
        inside = RunFiles(self._folder).paths()
        wanted = os.path.normpath(name)
        if wanted in inside:
            return inside[wanted]
        for each, path in inside.items():
            if each.startswith(f"{wanted}/"):
                return path[: len(path) - len(each) + len(wanted)]
        return RunFiles(self._folder).path(name)

    # --- source

    def get_snapshot_id(self) -> str | None:
        """Return the id of the snapshot; None without one."""
        digest = self._folder.submitted().get("snapshot")
        return snapshot_id(digest) if digest else None

    def take_snapshot(self, file_or_folder_path: str) -> str | None:
        """Keep a file or folder as the snapshot of a run of this process, and return its id.

        Raises SnapshotException if it is too large or does not exist, or for a submitted run, whose
        snapshot is its source.
        """
        if INTERACTIVE not in (read_json(self._folder.file(FILE)) or {}):
            raise SnapshotException(
                f"run {self._folder.run_id} was submitted, and its snapshot cannot be replaced;"
                " use upload_file or upload_folder"
            )
        if not os.path.exists(file_or_folder_path):
            raise SnapshotException(f"{file_or_folder_path!r} does not exist")
        from azureml._farandole import interactive

        with raised_as(SnapshotException):
            interactive.take_snapshot(self._folder, file_or_folder_path)
        return self.get_snapshot_id()

    def restore_snapshot(self, snapshot_id: str | None = None, path: str | None = None) -> str:
        """Write the snapshot as a ZIP file into the folder ``path``, and return the file's path.

        Raises SnapshotException without a snapshot.
        """
        source = self._folder.file("snapshot")
        if not os.path.isdir(source):
            raise SnapshotException(f"run {self._folder.run_id} has no snapshot")
        target = os.path.join(path or ".", f"{snapshot_id or self.get_snapshot_id()}.zip")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for where, _, names in os.walk(source):
                for name in sorted(names):
                    file = os.path.join(where, name)
                    archive.write(file, os.path.relpath(file, source))
        return target

    # --- data

    @property
    def input_datasets(self) -> dict[str, Any]:
        """The inputs by name: paths in a process of the run, datasets in other processes."""
        facts = self._data_facts()
        return {
            name: self._input(name, dataset, facts["modes"][name])
            for name, dataset in facts.get("inputs", {}).items()
            if name in os.environ or "id" in dataset
        }

    def _data_facts(self) -> dict[str, Any]:
        """Return the facts of the submission; a run of a sweep has the facts of the sweep."""
        found = read_json(self._folder.file(FILE))
        parent = self._folder.spec().parent
        if found is None and parent:
            sweep = RunsHome().find(parent)
            found = read_json(sweep.file(FILE)) if sweep is not None else None
        return found or {}

    def _input(self, name: str, dataset: Mapping[str, Any], mode: str) -> Any:
        if mode != "direct" and name in os.environ:
            return os.environ[name]
        from azureml.core.dataset import Dataset

        return Dataset.get_by_id(self.experiment.workspace, dataset["id"])

    @property
    def output_datasets(self) -> dict[str, str]:
        """The paths of the output folders by name."""
        found: dict[str, str] = self._data_facts().get("outputs", {})
        return found


def _common_folder(prefix: str, names: list[str]) -> str:
    """Return the folders of a prefix of ``names``, with a slash at the end; may be empty."""
    folder = prefix.rstrip("/") + "/"
    if prefix and all(name.startswith(folder) for name in names):
        return folder
    return prefix[: prefix.rfind("/") + 1]
