"""A file of options in YAML, for every command that starts jobs."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from farandole.errors import SettingsError


class ValueSource(NamedTuple):
    """Where a file says a value, as "job.yaml: np", and the names by which errors call it: flags,
    for the most part.
    """

    where: str
    names: tuple[str, ...]


@contextlib.contextmanager
def naming(places: Iterable[ValueSource]) -> Iterator[None]:
    """A SettingsError that begins with one of the names begins with the place in the file
    instead.
    """
    try:
        yield
    except SettingsError as error:
        text = str(error)
        for place in places:
            found = re.match(rf"({'|'.join(map(re.escape, place.names))})(?=[ =:])", text)
            if found:
                raise SettingsError(place.where + text[found.end() :]) from error
        raise


@contextlib.contextmanager
def within(place: ValueSource | None) -> Iterator[None]:
    """A SettingsError begins with the place, if there is one, for it has no name."""
    try:
        yield
    except SettingsError as error:
        if place is None:
            raise
        raise SettingsError(f"{place.where}: {error}") from error


def read(path: str, *, holds: str) -> dict[Any, Any]:
    """The file's content. ``holds``: what the file is made of.

    Raises SettingsError for a file that cannot be read or holds something else."""
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise SettingsError(
            "--config-file needs PyYAML, which is not installed: pip install pyyaml"
        ) from None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        twice, content = _twice(yaml.compose(text, yaml.SafeLoader)), yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"--config-file {path!r} cannot be read: {reason}") from error
    if twice is not None:
        line = twice.start_mark.line + 1
        raise SettingsError(
            f"{path}: {twice.value}: it stands there twice, again in line {line}: remove one of"
            " them"
        )
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config-file {path!r} must hold {holds}, not {content!r}")
    return content


def _twice(node: Any) -> Any:
    """The first key of a section, in what YAML has made of a file, that has another of its name
    before it.
    """
    keys = set()
    for key, value in node.value if getattr(node, "id", "") == "mapping" else ():
        if key.id == "scalar" and key.value in keys:
            return key
        keys.add(key.value if key.id == "scalar" else None)
        found = _twice(value)
        if found is not None:
            return found
    return None
