"""Credentials in the URLs of inputs, which must not enter a run's folder.

A URL with a password or a signature is stored outside the folder, with the environment variables of
the submission. The folder contains the URL without credentials.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from farandole.job.runs.spec import InputSpec

_PREFIX = "FARANDOLE_INPUT_"
_HIDDEN = "***"
# Parameters of signed URLs (Azure, Amazon, Google).
_SECRET = ("sig", "signature", "token", "key", "secret", "password", "credential", "auth")


def without_credentials(source: str) -> str:
    """Return a URL without its password and with ``***`` for secret parameters."""
    if "://" not in source:
        return source
    parts = urlsplit(source)
    host = parts.netloc.rpartition("@")
    user = host[0].partition(":")
    # abfs://container@account and user@host contain no secret.
    netloc = f"{user[0]}@{host[2]}" if host[1] and not user[1] else host[2]
    if host[1] and user[1]:
        netloc = f"{_HIDDEN}@{host[2]}"
    query = parts.query
    pairs = parse_qsl(query, keep_blank_values=True)
    if any(_is_secret(name) for name, _ in pairs):
        shown = [(name, _HIDDEN if _is_secret(name) else value) for name, value in pairs]
        query = urlencode(shown, safe="*")
    return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))


def _is_secret(name: str) -> bool:
    return any(part in name.lower() for part in _SECRET)


def secret_variables(specs: Sequence[InputSpec]) -> dict[str, str]:
    """Return environment variables with the full URLs of inputs that have credentials."""
    return {
        _PREFIX + spec.name: spec.source
        for spec in specs
        if without_credentials(spec.source) != spec.source
    }


def full_source(spec: InputSpec) -> str:
    """Return the URL of an input with the credentials from the runner's environment."""
    full = os.environ.get(_PREFIX + spec.name, "")
    return full if full and without_credentials(full) == spec.source else spec.source


def missing_variable(spec: InputSpec) -> str:
    """Return the missing variable for an input's full URL; empty if none is needed."""
    hidden = _HIDDEN in spec.source and without_credentials(spec.source) == spec.source
    return _PREFIX + spec.name if hidden and full_source(spec) == spec.source else ""


def forget_credentials(environment: MutableMapping[str, str]) -> None:
    """Remove variables with the full URLs of inputs, which ranks must not receive."""
    for name in [name for name in environment if name.startswith(_PREFIX)]:
        del environment[name]
