"""The files of a source: a path, a URL, or a pattern."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from farandole.base.optional import require
from farandole.errors import RunError, SettingsError
from farandole.job.runs.spec import InputSpec
from farandole.jobs.inputs.credentials import missing_variable, without_credentials

_PATTERN = re.compile(r"[*?\[]")
# The package that fsspec needs for a scheme. Other schemes need none, or name it in their errors.
_PACKAGES = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "aiohttp")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3fs")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcsfs")),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), ("adlfs", "adlfs")),
}
# Keys of fsspec's file information that identify a version.
_VERSIONS = (
    *("generation", "ETag", "etag", "md5Hash", "Content-MD5", "mtime", "LastModified"),
    *("last_modified", "Last-Modified", "updated", "created"),
)


class InputSource(NamedTuple):
    """A source to fetch; ``shown``: its URL without credentials, for messages and names."""

    name: str
    url: str
    shown: str


class RemoteFile(NamedTuple):
    """A file of a source.

    - ``path``: Its path in fsspec's file system.
    - ``name``: Its name in the cache, relative to the common folder of all files.
    - ``bytes``: Its size; -1 if unknown.
    - ``version``: An etag, checksum or time; empty if unknown.
    """

    path: str
    name: str
    bytes: int
    version: str


def is_url(source: str) -> bool:
    return "://" in source


def local_path(source: str) -> str | None:
    """Return the absolute path of a local source without a pattern; None for other sources."""
    if is_url(source):
        return None
    return os.path.abspath(os.path.expanduser(source))


def has_pattern(source: str) -> bool:
    """Return whether a source is a pattern such as ``data/*.csv``. In URLs, ``?`` is not a
    pattern.
    """
    if source.startswith(("http://", "https://")):
        return "*" in source
    return bool(_PATTERN.search(source))


def check_source(spec: InputSpec) -> None:
    """Raise SettingsError for a source that this host knows to be unreadable."""
    here = local_path(spec.source)
    if here is not None:
        if not os.path.exists(here) and not (has_pattern(here) and _matches(here)):
            raise SettingsError(f"the input {spec.name!r} does not exist: {spec.source}")
        if spec.mode == "path" and not os.path.exists(here):
            raise SettingsError(
                f"the input {spec.name!r} with mode 'path' needs one path, not the pattern"
                f" {spec.source}; use 'mount'"
            )
        return
    shown = without_credentials(spec.source)
    if spec.mode == "path":
        raise SettingsError(
            f"the input {spec.name!r} with mode 'path' needs a local path, not {shown}; use 'mount'"
        )
    if variable := missing_variable(spec):
        raise SettingsError(
            f"the credentials of the input {spec.name!r} ({shown}) are not stored with a run; set"
            f" {variable} to its full URL"
        )
    _check_packages(spec, shown)


def _matches(pattern: str) -> bool:
    import glob

    return bool(glob.glob(pattern, recursive=True))


def _check_packages(spec: InputSpec, shown: str) -> None:
    scheme = spec.source.partition("://")[0]
    try:
        fsspec = require("fsspec", f"reading the input {shown}")
        if scheme in _PACKAGES:
            require(_PACKAGES[scheme][0], f"reading {scheme}:// inputs")
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise SettingsError(f"the input {spec.name!r}: {error}") from error
    except ValueError:
        raise SettingsError(
            f"the input {spec.name!r} has the unknown scheme {scheme}:// ({shown}); known are"
            " file, http, https, s3, gs, abfs and others of fsspec"
        ) from None
    if scheme == "file" and not has_pattern(spec.source):
        path = "/" + spec.source.partition("://")[2].lstrip("/")
        if not os.path.exists(path):
            raise SettingsError(f"the input {spec.name!r} does not exist: {shown}")


def file_system(source: InputSource) -> tuple[Any, str]:
    """Return fsspec's file system for a source, and the path in it."""
    core = require("fsspec.core", f"reading the input {source.shown}")
    options: dict[str, Any] = {}
    if source.url.startswith(("http://", "https://")):
        aiohttp = require("aiohttp", "reading http:// inputs")
        # With the default, every transfer ends after five minutes.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=120)
        options = {"client_kwargs": {"timeout": timeout}}
    system, path = core.url_to_fs(source.url, use_listings_cache=False, **options)
    return system, path


def listing(system: Any, path: str, source: InputSource) -> list[RemoteFile]:
    """Return the current files of a source, sorted by name.

    Raises RunError if there are none.
    """
    system.invalidate_cache()
    try:
        if has_pattern(source.url):
            found = {
                each: info
                for each, info in system.glob(path, detail=True).items()
                if info.get("type") != "directory"
            }
        else:
            info = system.info(path)
            directory = info.get("type") == "directory"
            found = system.find(path, detail=True) if directory else {path: info}
    except FileNotFoundError:
        found = {}
    if not found:
        raise RunError(f"the input {source.name!r} does not exist: {source.shown}")
    folder = _common(sorted(found))
    return [_remote(each, folder, found[each]) for each in sorted(found)]


def _common(paths: list[str]) -> str:
    """Return the deepest folder that contains all paths."""
    if len(paths) == 1:
        return paths[0].rpartition("/")[0]
    return os.path.commonpath([each.rpartition("/")[0] or "/" for each in paths])


def _remote(path: str, folder: str, info: Any) -> RemoteFile:
    name = path[len(folder) :].lstrip("/") if path.startswith(folder) else path
    name = os.path.normpath(name.partition("?")[0].partition("#")[0]) or "data"
    size = info.get("size")
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return RemoteFile(path, name, -1 if size is None else int(size), version)
