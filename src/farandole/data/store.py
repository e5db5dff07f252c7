"""``Store``: a folder, on any file system, for the files of training: prepared data, checkpoints
and logs of runs.

Local paths are plain; other paths are URLs. A store may be pickled; each process makes its own
connection.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from farandole.base.optional import require
from farandole.data import paths
from farandole.errors import DataError

_PURPOSE = "a store"
_HDFS = "hdfs://"
# names of the modification time in file systems
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")
_PATTERN = re.compile(r"[*?\[\]]")  # fsspec treats these as patterns
_ONE = {"gcs": "gs", "abfss": "abfs", "az": "abfs"}  # alternative schemes of one file system


class Store:
    """A folder, given by its path or URL: local, ``s3://``, ``gs://``, ``abfs://``, ``hdfs://``, or
    any other scheme that fsspec knows.

    ``train_path``, ``val_path``, ``test_path``, ``runs_path``: replace folders below
    ``prefix_path``. ``save_runs=False``: no checkpoints and logs. ``storage_options``: arguments
    for fsspec. ``checkpoint_filename``: the name of a run's checkpoint.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self.prefix_path = self.normalize_path(str(prefix_path)).rstrip("/") or "/"
        self.storage_options = dict(storage_options or {})
        self._train_path = self._under(train_path, "intermediate_train_data")
        self._val_path = self._under(val_path, "intermediate_val_data")
        self._test_path = self._under(test_path, "intermediate_test_data")
        self._runs_path = self._under(runs_path, "runs")
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename
        self._connected: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix_path!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_connected": None}

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Return a store of the class that fits the path."""
        prefix_path = str(prefix_path)
        if prefix_path.startswith(_HDFS):
            return HDFSStore(prefix_path, *args, **kwargs)
        databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
        if databricks and DBFSLocalStore.matches_dbfs(DBFSLocalStore.normalize_path(prefix_path)):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)

    @staticmethod
    def normalize_path(path: str) -> str:
        """Return the path or URL by which this process reaches ``path``."""
        return paths.normalized(path)

    # Paths.

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the path of prepared training data; ``idx`` numbers data sets."""
        return _numbered(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        return _numbered(self._test_path, idx)

    def saving_runs(self) -> bool:
        return self._save_runs

    def get_runs_path(self) -> str:
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        if not re.fullmatch(r"[\w.-]+", run_id) or run_id in (".", ".."):
            raise DataError(
                f"run_id={run_id!r} must be a folder name of letters, digits, '-', '_' and '.'"
            )
        return f"{self._runs_path}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """Return the folder of a run's checkpoints (the run's own folder, as in Horovod); None if
        runs are not saved.
        """
        return self.get_run_path(run_id) if self._save_runs else None

    def get_logs_path(self, run_id: str) -> str | None:
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename or "checkpoint"

    def get_logs_subdir(self) -> str:
        return "logs"

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Return a run's files that end in ``suffix``, including those in subfolders, ordered by
        the numbers in their names.
        """
        run = self.get_run_path(run_id)
        if not self.fs.exists(run):
            return []
        inside = len(self.fs._strip_protocol(run))
        return sorted(
            (run + each[inside:] for each in self.fs.find(run) if each.endswith(suffix)),
            key=_natural,
        )

    # Contents.

    @property
    def fs(self) -> Any:
        """The file system of fsspec."""
        if self._connected is None:
            core = require("fsspec.core", _PURPOSE)
            self._connected = core.url_to_fs(self.prefix_path, **self.storage_options)[0]
        return self._connected

    def get_filesystem(self) -> Any:
        return self.fs

    def exists(self, path: str) -> bool:
        return bool(self.fs.exists(path))

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically: a reader sees either the old or the new content (on HDFS,
        possibly a part of the new content).
        """
        if not self._local():
            self.fs.pipe_file(path, content)  # object stores show a file only once it is complete
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def write_text(self, path: str, text: str) -> None:
        self.write(path, text.encode())

    def copy(self, lpath: str, rpath: str, recursive: bool = False, **options: Any) -> None:
        """Copy a local file, or with ``recursive`` a local folder, to a path in the store."""
        if self._local():
            os.makedirs(os.path.dirname(rpath), exist_ok=True)
        self.fs.put(lpath, rpath, recursive=recursive, **options)

    def delete(self, path: str) -> None:
        """Remove a file or folder, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            if self._local() or not _PATTERN.search(path):
                self.fs.rm(path, recursive=True)
                return
            # one by one, because rm would treat the path as a pattern
            for each in self.fs.find(path):
                self.fs.rm_file(each)

    def is_parquet_dataset(self, path: str) -> bool:
        try:
            return self.get_parquet_dataset(path) is not None
        except DataError:
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """Return pyarrow's dataset of the files at ``path``. Raises DataError if they are not
        Parquet.
        """
        pa, ds = require("pyarrow", _PURPOSE), require("pyarrow.dataset", _PURPOSE)
        system, inside = paths.arrow_filesystem(path, self.storage_options)
        try:
            dataset = ds.dataset(inside, filesystem=system, format="parquet", partitioning="hive")
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as Parquet: {error}") from error
        if not dataset.files:
            raise DataError(f"{path} contains no Parquet files")
        return dataset

    # Runs.

    def runs(self) -> list[str]:
        """Return the ids of the runs, ordered by last write."""
        return [run_id for _, run_id in self._by_time()]

    def delete_run(self, run_id: str) -> None:
        self.delete(self.get_run_path(run_id))

    def retain(self, runs: int) -> list[str]:
        """Remove all runs but the last ``runs``; return the ids of the removed ones."""
        if runs < 0:
            raise DataError(f"runs={runs} must be at least 0")
        runs_by_time = self._by_time()
        unknown = [run_id for time, run_id in runs_by_time if time is None]
        if runs and unknown:
            raise DataError(
                f"{self._runs_path} does not have the time of the last write to {unknown[0]!r}."
                " Use delete_run()"
            )
        gone = [run_id for _, run_id in runs_by_time[: -runs or None]]
        for run_id in gone:
            self.delete(f"{self._runs_path}/{run_id}")
        return gone

    def retain_checkpoints(self, run_id: str, checkpoints: int, suffix: str = ".ckpt") -> list[str]:
        """Remove all checkpoints of a run but the last ones; return the paths of the removed
        ones.
        """
        if checkpoints < 1:
            raise DataError(
                f"checkpoints={checkpoints} must be at least 1, because a run resumes from a"
                " checkpoint"
            )
        gone = self.get_checkpoints(run_id, suffix)[:-checkpoints]
        for path in gone:
            self.delete(path)
        return gone

    # For use on ranks.

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """Return a function that returns a context manager, which provides a local folder for a
        run's files. ``sync_fn`` copies them to the store.
        """
        run = self.get_run_path(run_id)
        local = self._local()

        @contextlib.contextmanager
        def local_run_path() -> Iterator[str]:
            if local:
                os.makedirs(run, exist_ok=True)
                yield run
                return
            folder = tempfile.mkdtemp()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return local_run_path

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return a function that takes a local folder, and copies its changes since the last call
        to the run's folder.
        """
        run, store = self.get_run_path(run_id), self
        sent: dict[str, tuple[int, int]] = {}

        def sync(root_path: str) -> None:
            if store._local():
                return
            for folder, _, names in os.walk(root_path):
                for name in names:
                    path = os.path.join(folder, name)
                    facts = os.stat(path)
                    state = (facts.st_mtime_ns, facts.st_size)
                    if sent.get(path) != state:
                        store.fs.put_file(path, f"{run}/{os.path.relpath(path, root_path)}")
                        sent[path] = state

        return sync

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> SimpleNamespace:
        """Return a run's paths and functions as plain attributes, for a function on the ranks."""
        return SimpleNamespace(
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self.get_checkpoint_filename(),
            logs_subdir=self.get_logs_subdir(),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )

    def _under(self, path: str | None, name: str) -> str:
        if not path:
            return f"{self.prefix_path.rstrip('/')}/{name}"
        folder = self.normalize_path(str(path)).rstrip("/") or "/"
        if _scheme(folder) != _scheme(self.prefix_path):
            raise DataError(
                f"{path} is on another file system than the store, {self.prefix_path}. Use a path"
                " on the store's file system"
            )
        return folder

    def _local(self) -> bool:
        return "://" not in self.prefix_path

    def _by_time(self) -> list[tuple[float | None, str]]:
        """Return the last write of each run (None if unknown) and its id; the latest run is
        last.
        """
        if not self.fs.exists(self._runs_path):
            return []
        folders = [
            each for each in self.fs.ls(self._runs_path, detail=True) if each["type"] == "directory"
        ]
        runs = [
            (self._written(each), os.path.basename(each["name"].rstrip("/"))) for each in folders
        ]
        return sorted(runs, key=lambda run: (run[0] or 0.0, run[1]))

    def _written(self, run: Mapping[str, Any]) -> float | None:
        """Return the time of the last write to a run, ignoring removals. A run without files is the
        oldest.
        """
        files = [*self.fs.find(run["name"], detail=True).values()]
        times = [time for time in map(_time, files or [run]) if time is not None]
        return max(times) if times else None if files else 0.0


class FilesystemStore(Store):
    """A store on any file system that fsspec knows."""


LocalStore = FilesystemStore  # an older name


class HDFSStore(Store):
    """A store on HDFS: ``hdfs://host:port/path``, ``hdfs:///path`` or a path. It needs Hadoop's
    libhdfs.
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        namespace, path = self._parsed(prefix_path)
        if host is not None:
            own = f"{host}:{port}" if port else host
            if namespace and namespace != own:
                raise DataError(
                    f"Mismatched HDFS namespace for URL: {prefix_path}. Found {namespace} but"
                    f" expected {own}"
                )
            namespace = own
        options = {
            "user": user,
            "kerb_ticket": kerb_ticket,
            "extra_conf": extra_conf and dict(extra_conf),
        }
        own_options = {name: value for name, value in options.items() if value is not None}
        kwargs["storage_options"] = {**own_options, **(kwargs.get("storage_options") or {})}
        super().__init__(f"{_HDFS}{namespace}{path}", *args, **kwargs)

    def _under(self, path: str | None, name: str) -> str:
        if path and path.startswith("/"):  # a path on this HDFS
            path = "/".join(self.prefix_path.split("/")[:3]) + path
        return super()._under(path, name)

    @staticmethod
    def _parsed(url: str) -> tuple[str, str]:
        namespace, slash, path = (
            url.removeprefix(_HDFS).partition("/") if url.startswith(_HDFS) else ("", "/", url[1:])
        )
        if not slash or not path:
            raise DataError(f"Failed to parse path from URL: {url}")
        return namespace, slash + path


class DBFSLocalStore(FilesystemStore):
    """A store on Databricks' file system, through the mount /dbfs: ``/dbfs/...``, ``dbfs:/...``,
    ``file:///dbfs/...``, and through the mount of volumes: ``/Volumes/...``.
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        if not self.matches_dbfs(self.normalize_path(prefix_path)):
            raise DataError(
                f"The provided path is not a DBFS path: {prefix_path}, Please provide a path"
                " starting with `/dbfs/...` or `dbfs:/...` or `file:/dbfs/...` or"
                " `file:///dbfs/...`."
            )
        super().__init__(prefix_path, *args, **kwargs)

    @staticmethod
    def matches_dbfs(path: str) -> bool:
        return path.startswith(("/dbfs/", "/Volumes/"))

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename or "checkpoint.tf"


def _numbered(path: str, number: int | None) -> str:
    return path if number is None else f"{path}.{number}"


def _scheme(path: str) -> str:
    """Return the scheme of a URL; "" for a path on this machine."""
    scheme, url, _ = path.partition("://")
    return _ONE.get(scheme, scheme) if url else ""


def _time(file: Mapping[str, Any]) -> float | None:
    """Return a file's modification time in seconds; None if its file system does not report it."""
    time: Any = next((file[name] for name in _TIMES if file.get(name)), None)
    if isinstance(time, str):
        time = datetime.datetime.fromisoformat(time.replace("Z", "+00:00"))
    if isinstance(time, datetime.datetime):
        time = time.timestamp()
    return None if time is None else float(time)


def _natural(path: str) -> list[Any]:
    """Return a sort key that puts epoch 10 after epoch 9."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path)]
