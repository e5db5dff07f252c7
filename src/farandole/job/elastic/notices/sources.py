"""The sources of preemption notices, and the interpretation of their answers. Pure.

The forms of the answers are from the clouds' documentation: "Spot Instance interruption notices"
(Amazon EC2), "Preemptible VM instances" (Google Compute Engine), and "Azure Metadata Service:
Scheduled Events for Linux VMs".
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from farandole.errors import SettingsError, did_you_mean
from farandole.job.elastic.notices.notice import Notice

METADATA = "http://169.254.169.254"  # the link-local address of the clouds' metadata services
GOOGLE = "http://metadata.google.internal"
PRESETS = ("aws", "gcp", "azure")
# Signals that a process cannot catch, or that report its own faults.
_OTHERS = {"KILL", "STOP", "SEGV", "BUS", "FPE", "ILL", "CHLD", "CONT"}
# Azure's events that end a machine or erase its memory.
_ENDING = {"Preempt", "Terminate", "Reboot", "Redeploy"}


class SignalSource(NamedTuple):
    """The signal ``number``, sent to a rank or to the agent of a host."""

    number: int


class FileSource(NamedTuple):
    """A file whose existence is the notice. ``{host}`` in the path is the host's name."""

    path: str


class WebSource(NamedTuple):
    """An address to query by HTTP.

    - ``name``: ``http``, or the cloud whose protocol is used.
    - ``base``: The scheme, host and port.
    - ``path``: The path, with the query.
    - ``headers``: The headers of the request.
    """

    name: str
    base: str
    path: str
    headers: Mapping[str, str] = {}


Source = SignalSource | FileSource | WebSource


def parse_sources(text: str, env: Mapping[str, str] = {}) -> tuple[Source, ...]:
    """Parse the setting ``preemption_notice``, a comma-separated list.

    An element is ``signal:USR1``, ``file:/path``, an address that begins with ``http://``, or one
    of ``PRESETS``. ``env``: environment variables; AWS_EC2_METADATA_SERVICE_ENDPOINT and
    GCE_METADATA_HOST give the addresses of metadata services, as for the clouds' tools. Raises
    SettingsError for any other value.
    """
    return tuple(_parse(each.strip(), env) for each in text.split(",") if each.strip())


def _parse(text: str, env: Mapping[str, str]) -> Source:
    kind, _, rest = text.partition(":")
    if text in PRESETS:
        return _preset(text, env)
    if kind == "file" and rest:
        return FileSource(rest)
    if kind == "signal" and rest:
        return SignalSource(_signal(rest))
    if kind == "http" and rest.startswith("//") and rest[2:]:
        host, _, path = rest[2:].partition("/")
        return WebSource("http", f"http://{host}", f"/{path}")
    near = did_you_mean(text, PRESETS)
    raise SettingsError(
        f"preemption_notice={text!r} is not a source of notices (signal:USR1,"
        f" file:/path, http://host/path, or a cloud: {', '.join(PRESETS)}){near}"
    )


def _signal(name: str) -> int:
    short = name.upper().removeprefix("SIG")
    found = signal.Signals.__members__.get(f"SIG{short}")
    if found is None or short in _OTHERS:
        raise SettingsError(
            f"preemption_notice=signal:{name}: {name!r} is not a signal that can announce the end"
            " of a host. Use a signal such as TERM, USR1 or USR2"
        )
    return int(found)


def _preset(name: str, env: Mapping[str, str]) -> WebSource:
    if name == "aws":
        base = env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or METADATA
        return WebSource(name, base, "/latest/meta-data/spot/instance-action")
    if name == "gcp":
        host = env.get("GCE_METADATA_HOST", "")
        base = f"http://{host}" if host else GOOGLE
        path = "/computeMetadata/v1/instance/preempted"
        return WebSource(name, base, path, {"Metadata-Flavor": "Google"})
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    return WebSource(name, METADATA, path, {"Metadata": "true"})


def notice_in(source: WebSource, status: int, body: str, now: float, name: str) -> Notice | None:
    """Return the notice in an HTTP response; None if there is none.

    ``status``, ``body``: the answer. ``now``: the time in seconds since 1970. ``name``: the name of
    this machine, to which Azure's events refer. Raises ValueError for a response that does not have
    the cloud's form.
    """
    if status in (404, 410):
        return None
    if status != 200:
        raise ValueError(f"the answer has status {status}")
    return _READERS.get(source.name, _any)(body.strip(), now, name)


def _any(body: str, now: float, name: str) -> Notice | None:
    return (
        None if body.lower() in ("", "false", "none", "null", "0") else Notice(f"HTTP: {body}"[:80])
    )


def _aws(body: str, now: float, name: str) -> Notice | None:
    facts = _object(body)
    when = str(facts.get("time", ""))
    return Notice(f"spot instance: {facts.get('action', 'interruption')}", _seconds(when, now))


def _gcp(body: str, now: float, name: str) -> Notice | None:
    return Notice("preempted instance") if body.upper() == "TRUE" else None


def _azure(body: str, now: float, name: str) -> Notice | None:
    for event in _object(body).get("Events", []):
        mine = name in event.get("Resources", []) or not name
        if mine and event.get("EventType") in _ENDING:
            return Notice(f"scheduled event: {event['EventType']}", _date(event, now))
    return None


_READERS: dict[str, Callable[[str, float, str], Notice | None]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
}


def _object(body: str) -> dict[str, Any]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{body[:80]!r} is not a JSON object")
    return found


def _seconds(text: str, now: float) -> float | None:
    """Return the seconds until ``2030-01-01T00:00:00Z``; None for any other string."""
    from datetime import datetime, timezone  # imported here because other sources need no dates

    try:
        when = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return when.replace(tzinfo=timezone.utc).timestamp() - now


def _date(event: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds until Azure's ``Mon, 19 Sep 2022 18:29:47 GMT``; None if unknown."""
    from email.utils import parsedate_to_datetime  # as in ``_seconds``

    try:
        return parsedate_to_datetime(str(event.get("NotBefore", ""))).timestamp() - now
    except ValueError:
        return None
