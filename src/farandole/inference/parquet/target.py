"""The folder of predictions: files that appear once they are complete, and a record of the facts
that determine them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from farandole.data import paths
from farandole.errors import DataError, SettingsError
from farandole.inference.output_files import OutputFile

MANIFEST = "_farandole.json"  # readers ignore names that begin with an underscore or a dot
_OWN = (".part-", f".{MANIFEST}.")  # incomplete files
_CURES = {
    "model": (
        ". For a model that differs in each process, pass model_version= (--model-version) in all"
        " calls"
    )
}
_MARK = b"farandole"  # key in a file of predictions for the digest of these facts


def mark(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def check_apart(inputs: Sequence[str], files: Sequence[str], output: str) -> None:
    """Raise SettingsError if the output is within the input, or the input within the output.
    ``files``: the input files.
    """
    target = _place(output)
    for path in [*inputs, *files]:
        resolved = _place(path)
        if _within(resolved, target) or _within(target, resolved):
            raise SettingsError(
                f"output={output} and input {path} overlap, so predictions would be read as input"
                " or replace it. Use another folder"
            )


def _place(path: str) -> str:
    local = paths.local(path)
    return (paths.normalized(path) if local is None else os.path.realpath(local)).rstrip("/")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _difference(name: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        parts = [
            part for part in dict.fromkeys([*before, *now]) if before.get(part) != now.get(part)
        ]
        if name == "model" and "version" not in parts:  # digests mean nothing to a user
            return f"the {name} differs in {', '.join(parts)}"
        before, now = ({part: each.get(part) for part in parts} for each in (before, now))
    return f"the {name} was {before!r:.200}, and is now {now!r:.200}"


class Target:
    """An output folder. ``path``: a folder or its URL. ``mark``: the digest of the facts that
    determine its files.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None, mark: str) -> None:
        self._system, self._path = paths.arrow_filesystem(path, storage_options)
        self._mark = mark.encode()

    def begin(self, facts: Mapping[str, Any], overwrite: bool) -> None:
        """Create the folder, or accept an existing one with files of the same facts. Raises
        SettingsError if it has other contents.
        """
        kind = self._system.get_file_info(self._path).type
        if overwrite and kind != fs.FileType.NotFound:
            self._remove(kind)
            kind = fs.FileType.NotFound
        if kind == fs.FileType.File:
            raise SettingsError(
                f"output={self._path} is a file. Use a folder, or overwrite it with overwrite"
                " (--overwrite)"
            )
        if kind == fs.FileType.Directory and (existing := self._facts()) is not None:
            self._compare(existing, facts)
            return
        self._system.create_dir(self._path)
        self._put(MANIFEST, json.dumps(facts).encode())

    def has(self, file: OutputFile) -> bool:
        """Return whether a file exists and is complete.

        A machine crash may have truncated it, and an overlapping call with different facts may have
        replaced it.
        """
        path = f"{self._path}/{file.name}"
        if self._system.get_file_info(path).type != fs.FileType.File:
            return False
        try:
            footer = pq.read_metadata(path, filesystem=self._system)
            same = (footer.metadata or {}).get(_MARK) == self._mark
            return bool(same and footer.num_rows == file.end - file.begin)
        except (pa.ArrowException, OSError):
            return False

    def write(self, file: OutputFile, tables: Iterator[Any], about: Mapping[bytes, bytes]) -> None:
        """Write a file of ``tables``, at least one, with the same columns.

        Each table is a row group, and only one is in memory. ``about``: metadata for its footer, in
        addition to the tables' own.
        """
        with self._whole(file.name) as stream:
            first = next(tables)
            schema = first.schema.with_metadata(
                {**(first.schema.metadata or {}), **about, _MARK: self._mark}
            )
            with pq.ParquetWriter(stream, schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table)

    def finish(self, every: Sequence[OutputFile]) -> None:
        """Remove files of killed processes. Raises DataError for a missing or additional file."""
        self.clean()
        wanted = {file.name for file in every}
        missing = [file.name for file in every if not self.has(file)]
        more = [name for name in self._names() if name.endswith(".parquet") and name not in wanted]
        if missing or more:
            what = (
                f"{missing[0]} is missing"
                if missing
                else (f"{more[0]} does not belong to this job")
            )
            raise DataError(
                f"{self._path} was changed by another job: {what}. Use overwrite (--overwrite)"
            )

    def clean(self) -> None:
        """Remove incomplete files of processes that have ended."""
        for path in self._names():
            if path.startswith(_OWN):
                self._system.delete_file(f"{self._path}/{path}")

    def _facts(self) -> Any:
        """Return the facts that determine the folder's files; None for an empty folder."""
        names = self._names()
        if MANIFEST not in names:
            if [name for name in names if not name.startswith(".")]:
                raise SettingsError(
                    f"output={self._path} contains other files ({names[0]}). Use another folder,"
                    " or overwrite (--overwrite)"
                )
            return None
        with self._system.open_input_stream(f"{self._path}/{MANIFEST}") as file:
            return json.loads(file.read())

    def _compare(self, existing: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if existing.get(name) != value:
                raise SettingsError(
                    f"output={self._path} contains predictions of a different call:"
                    f" {_difference(name, existing.get(name), value)}. Use another folder, or"
                    f" overwrite (--overwrite){_CURES.get(name, '')}"
                )

    def _put(self, name: str, content: Any) -> None:
        with self._whole(name) as file:
            file.write(content)

    @contextlib.contextmanager
    def _whole(self, name: str) -> Iterator[Any]:
        """Yield a file to write to, which appears completely or not at all."""
        temporary = f"{self._path}/.{name}.{socket.gethostname()}-{os.getpid()}"
        try:
            with self._system.open_output_stream(temporary) as file:
                yield file
        except BaseException:
            with contextlib.suppress(OSError):
                self._system.delete_file(temporary)
            raise
        self._system.move(temporary, f"{self._path}/{name}")

    def _names(self) -> list[str]:
        entries = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return sorted(each.base_name for each in entries)

    def _remove(self, kind: Any) -> None:
        if kind == fs.FileType.File:
            self._system.delete_file(self._path)
            return
        if MANIFEST not in self._names() and self._names():
            raise SettingsError(
                f"output={self._path} was not written by farandole predict, so it is not"
                " overwritten. Remove it, or use another folder"
            )
        self._system.delete_dir(self._path)
