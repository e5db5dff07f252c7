"""The files of a dataset: their listing, their download, and a folder of all of them."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from azureml.data.dataset_error_handling import DatasetExecutionError, DatasetValidationError
from farandole.errors import RunError, SettingsError
from farandole.job.runs.folder import make_private
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import InputSpec
from farandole.jobs.inputs.credentials import without_credentials
from farandole.jobs.inputs.sources import (
    InputSource,
    check_source,
    file_system,
    has_pattern,
    is_url,
    listing,
    local_path,
)
from farandole.jobs.snapshot.store import clone

Step = tuple[Any, ...]


class DatasetDefinition(NamedTuple):
    """The definition of a dataset, as plain data.

    - ``kind``: ``file`` or ``tabular``.
    - ``sources``: Absolute paths, URLs or patterns.
    - ``options``: The format of a table and the arguments of its reader.
    - ``steps``: Selections in order: ``("take", n)``, ``("skip", n)``, ``("split", percentage,
      seed, part)``; of a table also ``("keep", columns)`` and ``("drop", columns)``.
    """

    kind: str
    sources: tuple[str, ...]
    options: Mapping[str, Any] = {}
    steps: tuple[Step, ...] = ()

    def followed_by(self, *step: Any) -> DatasetDefinition:
        """Return the definition with a further step."""
        return self._replace(steps=(*self.steps, step))

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DatasetDefinition:
        return DatasetDefinition(
            data["kind"],
            tuple(data["sources"]),
            dict(data["options"]),
            tuple(tuple(step) for step in data["steps"]),
        )


class DatasetFile(NamedTuple):
    """A file of a dataset.

    - ``system``, ``path``: The file system of fsspec, and the path in it.
    - ``name``: The name in the dataset.
    - ``version``: A string that changes with the file.
    """

    system: Any
    path: str
    name: str
    version: str


def check(definition: DatasetDefinition, *, exists: bool) -> None:
    """Raise DatasetValidationError for a source that cannot be read.

    ``exists``: also check that each source has files.
    """
    for source in definition.sources:
        try:
            check_source(InputSpec("dataset", source))
        except SettingsError as error:
            raise DatasetValidationError(str(error)) from error
    if exists:
        try:
            files(definition._replace(steps=()))
        except DatasetExecutionError as error:
            raise DatasetValidationError(error.message) from error


def files(definition: DatasetDefinition) -> list[DatasetFile]:
    """Return the files of a dataset, in order of their names.

    Names are relative to the deepest folder of all files. The steps of a table are not applied,
    because they select rows. Raises DatasetExecutionError if a source has no files.
    """
    found = [file for source in definition.sources for file in _listed(source)]
    if len(definition.sources) > 1:
        found = _with_common_names(found)
    if definition.kind == "file":
        for step in definition.steps:
            found = selected(found, step)
    return found


def _listed(source: str) -> list[DatasetFile]:
    shown = without_credentials(source)
    given = InputSource("dataset", source, shown)
    try:
        system, path = file_system(given)
        return [
            DatasetFile(system, each.path, each.name, f"{each.bytes} {each.version}")
            for each in listing(system, path, given)
        ]
    except (RunError, ImportError) as error:
        raise DatasetExecutionError(str(error)) from error
    except Exception as error:
        text = str(error).replace(source, shown)
        raise DatasetExecutionError(
            f"the dataset {shown} cannot be read: {type(error).__name__}: {text}"
        ) from None  # the cause may show credentials


def _with_common_names(found: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Return the files of several sources with names relative to their common folder."""
    paths = [file.path.partition("?")[0].rpartition("://")[2].lstrip("/") for file in found]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [
        file._replace(name=os.path.relpath(path, folder or "."))
        for file, path in zip(found, paths, strict=True)
    ]


def selected(items: Sequence[Any], step: Step) -> list[Any]:
    """Return the items, files or positions of rows, that a step of a definition keeps."""
    kind, *arguments = step
    if kind == "take":
        return list(items[: arguments[0]])
    if kind == "skip":
        return list(items[arguments[0] :])
    percentage, seed, part = arguments
    draw = random.Random(seed)
    chosen = [draw.random() < percentage for _ in items]
    return [item for item, first in zip(items, chosen, strict=True) if first == (part == 0)]


def download(
    definition: DatasetDefinition, into: str, *, overwrite: bool, what: str = "dataset"
) -> list[str]:
    """Copy the files of a dataset below the folder ``into`` and return the paths of the copies.

    Raises DatasetExecutionError if a file exists and ``overwrite`` is False, or cannot be read.
    """
    found = files(definition)
    targets = [os.path.join(into, file.name) for file in found]
    existing = [path for path in targets if os.path.lexists(path)]
    if existing and not overwrite:
        raise DatasetExecutionError(
            f"{existing[0]} exists already, so the {what} cannot be downloaded to it; pass"
            " overwrite=True to replace it"
        )
    for file, target in zip(found, targets, strict=True):
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        _fetch(file, target)
    return targets


def _fetch(file: DatasetFile, target: str) -> None:
    partial = f"{target}.part-{os.getpid()}"
    try:
        if file.system.protocol in ("file", ("file", "local")):
            clone(file.path, partial)
        else:
            file.system.get_file(file.path, partial)
        os.replace(partial, target)
    except Exception as error:
        shown = without_credentials(file.path)
        text = str(error).replace(file.path, shown)
        raise DatasetExecutionError(
            f"{shown} cannot be fetched to {target}: {type(error).__name__}: {text}"
        ) from None  # the cause may show credentials
    finally:
        if os.path.lexists(partial):
            os.unlink(partial)


def is_single_file(definition: DatasetDefinition) -> bool:
    """Return whether a dataset is one file by its definition: one source that is a file."""
    if len(definition.sources) != 1 or definition.steps or has_pattern(definition.sources[0]):
        return False
    source = definition.sources[0]
    _, path = file_system(InputSource("dataset", source, without_credentials(source)))
    return [file.path for file in files(definition)] == [path]


def source_of(definition: DatasetDefinition) -> str:
    """Return the one path or URL from which a run can read the dataset.

    A dataset made of one file has the path of the file, any other dataset the path of a folder. A
    dataset of several sources, of a pattern or with steps becomes a folder of all its files in the
    home of the runs. Raises DatasetExecutionError if a file cannot be read.
    """
    if len(definition.sources) == 1 and not definition.steps:
        source = definition.sources[0]
        here = plain_path(source)
        if here is not None and not has_pattern(source):
            return here
        if is_single_file(definition) or (not has_pattern(source) and len(files(definition)) > 1):
            return source
    return collected(definition)


def collected(definition: DatasetDefinition) -> str:
    """Return a folder with all files of a dataset, fetched once for each version of the files.

    Raises DatasetExecutionError if a file cannot be read.
    """
    found = files(definition)
    facts = [f"{file.path} {file.name} {file.version}" for file in found]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
    folder = os.path.join(
        RunsHome().folder(os.path.join("azureml", ".shared", "collected")), digest
    )
    if not os.path.isdir(folder):
        building = make_private(f"{folder}.new-{os.getpid()}")
        for file in found:
            target = os.path.join(building, file.name)
            make_private(os.path.dirname(target))
            _fetch(file, target)
        try:
            os.rename(building, folder)
        except OSError:  # another process was faster
            if not os.path.isdir(folder):
                raise
    return folder


def plain_path(source: str) -> str | None:
    """Return the absolute path of a local source, given as a path or a ``file://`` URL."""
    if source.startswith("file://"):
        return "/" + source[len("file://") :].lstrip("/")
    return None if is_url(source) else local_path(source)
