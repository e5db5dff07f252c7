"""YAML files of options, for every command that starts jobs."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from farandole.errors import SettingsError


class ValueSource(NamedTuple):
    """The place of a value in a file, such as "job.yaml: np", and its names in errors (mostly
    flags).
    """

    where: str
    names: tuple[str, ...]


@contextlib.contextmanager
def naming(places: Iterable[ValueSource]) -> Iterator[None]:
    """Replace a name at the beginning of a SettingsError by the value's place in the file."""
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
    """Prefix a SettingsError with the place, if there is one."""
    try:
        yield
    except SettingsError as error:
        if place is None:
            raise
        raise SettingsError(f"{place.where}: {error}") from error


def read(path: str, *, holds: str) -> dict[Any, Any]:
    """Return the file's content. ``holds`` describes the expected content, for messages.

    Raises SettingsError if the file is unreadable or has other content.
    """
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
            f"{path}: {twice.value}: duplicate key, repeated in line {line}: remove one of them"
        )
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config-file {path!r} must hold {holds}, not {content!r}")
    return content


def _twice(node: Any) -> Any:
    """Return the first key of a YAML node tree that occurs twice in its section, or None."""
    keys = set()
    for key, value in node.value if getattr(node, "id", "") == "mapping" else ():
        if key.id == "scalar" and key.value in keys:
            return key
        keys.add(key.value if key.id == "scalar" else None)
        found = _twice(value)
        if found is not None:
            return found
    return None
