"""The named inputs of a run: checked at submission, fetched before its ranks start.

A local path is read in place. A URL is fetched into the cache below the home, once per version of
its content. All runs and ranks of the host share the cache.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from farandole.errors import SettingsError
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.spec import INPUT_MODES, InputSpec
from farandole.jobs.inputs.cache import InputCache
from farandole.jobs.inputs.credentials import (
    forget_credentials,
    full_source,
    secret_variables,
    without_credentials,
)
from farandole.jobs.inputs.sources import InputSource, check_source, is_url, local_path
from farandole.jobs.snapshot.store import clone, clone_tree

__all__ = ["check", "forget_credentials", "prepare", "public", "secret_variables", "variables"]

_RESERVED = ("PATH", "HOME", "USER", "SHELL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
_OURS = ("FARANDOLE_", "HOROVOD_")


def check(specs: Sequence[InputSpec], command: Sequence[str]) -> None:
    """Raise SettingsError for an input that cannot be read or has an invalid name."""
    names = [spec.name for spec in specs]
    for spec in specs:
        if names.count(spec.name) > 1:
            raise SettingsError(f"two inputs are called {spec.name!r}; give each its own name")
        if not spec.name.isidentifier():
            raise SettingsError(
                f"the input's name {spec.name!r} must consist of letters, digits and '_'"
            )
        if spec.name in _RESERVED or spec.name.startswith(_OURS):
            raise SettingsError(
                f"the input's name {spec.name!r} is a variable that programs rely on; choose a"
                " different name"
            )
        if spec.mode not in INPUT_MODES:
            raise SettingsError(
                f"the input {spec.name!r} has mode {spec.mode!r}, which is none of"
                f" {', '.join(INPUT_MODES)}"
            )
        check_source(spec)


def prepare(specs: Sequence[InputSpec], folder: RunFolder, home: RunsHome) -> dict[str, str]:
    """Make the inputs available on this host and return their paths by name.

    The path is a file if the source is a single file, otherwise (folder or pattern) a folder.
    Cached inputs stay in the cache while this process lives. Raises RunError if an input does not
    exist, or changes during the transfer.
    """
    cache = InputCache(home)
    return {spec.name: _prepare(spec, folder, cache) for spec in specs}


def _prepare(spec: InputSpec, folder: RunFolder, cache: InputCache) -> str:
    here = local_path(spec.source)
    if here is not None and os.path.exists(here):
        if spec.mode != "download":
            return here
        found = here
    else:
        source = InputSource(spec.name, full_source(spec), without_credentials(spec.source))
        found = cache.fetch(source, folder)
        if spec.mode != "download":
            return found
    return _own_copy(found, spec.name, folder)


def _own_copy(path: str, name: str, folder: RunFolder) -> str:
    """Make a copy of an input that this run may change; return the copy's path."""
    into = os.path.join(folder.folder("work", "inputs"), name)
    if os.path.isdir(path):
        clone_tree(path, into)
        return into
    os.mkdir(into, 0o700)
    target = os.path.join(into, os.path.basename(path))
    clone(path, target)
    return target


def variables(specs: Sequence[InputSpec], paths: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with the paths of the inputs."""
    return {spec.name: paths[spec.name] for spec in specs}


def public(specs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the inputs without credentials in their URLs, and with absolute local paths."""
    return tuple(dataclasses.replace(spec, source=_public(spec.source)) for spec in specs)


def _public(source: str) -> str:
    return without_credentials(source) if is_url(source) else local_path(source) or source
