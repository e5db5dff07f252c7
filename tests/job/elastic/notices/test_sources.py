"""Sources of preemption notices: their texts, and the meaning of their answers."""

from __future__ import annotations

import json
import signal

import pytest

from farandole.errors import SettingsError
from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.notices.sources import (
    FileSource,
    SignalSource,
    WebSource,
    notice_in,
    parse_sources,
)
from tests.kits.messages import mentioning, mentions

NOW = 1_893_456_000.0  # 2030-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("signal:USR1", (SignalSource(signal.SIGUSR1),)),
        ("signal:SIGTERM, signal:usr2", (SignalSource(15), SignalSource(signal.SIGUSR2))),
        ("file:/run/leave-{host}", (FileSource("/run/leave-{host}"),)),
        ("http://10.0.0.1:80/a/b?c=1", (WebSource("http", "http://10.0.0.1:80", "/a/b?c=1"),)),
    ],
)
def test_texts(text: str, expected: object) -> None:
    assert parse_sources(text) == expected


def test_clouds_have_their_own_addresses() -> None:
    aws, gcp, azure = parse_sources("aws,gcp,azure")
    assert isinstance(aws, WebSource)
    assert isinstance(gcp, WebSource)
    assert isinstance(azure, WebSource)
    assert aws.base == azure.base == "http://169.254.169.254"
    assert gcp.headers == {"Metadata-Flavor": "Google"}
    assert azure.headers == {"Metadata": "true"}


def test_addresses_of_the_clouds_tools_are_used() -> None:
    env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://a:1/", "GCE_METADATA_HOST": "b:2"}
    bases = [each.base for each in parse_sources("aws,gcp", env) if isinstance(each, WebSource)]
    assert bases == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize(
    "text", ["awss", "signal:KILL", "signal:NOPE", "file:", "https://x", "http://", "signal:"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=mentioning(text)):
        parse_sources(f"aws,{text}")


def _azure(kind: str, *names: str) -> str:
    event = {"EventType": kind, "Resources": names, "NotBefore": "Tue, 01 Jan 2030 00:00:30 GMT"}
    return json.dumps({"Events": [event]})


@pytest.mark.parametrize(
    ("name", "body", "reason", "seconds"),
    [
        ("aws", '{"action": "terminate", "time": "2030-01-01T00:02:00Z"}', "terminate", 120.0),
        ("aws", '{"action": "stop"}', "stop", None),
        ("gcp", "TRUE\n", "preempted", None),
        ("azure", _azure("Preempt", "me", "other"), "Preempt", 30.0),
        ("http", "leaving", "leaving", None),
    ],
)
def test_notices(name: str, body: str, reason: str, seconds: float | None) -> None:
    found = notice_in(WebSource(name, "", ""), 200, body, NOW, "me")
    assert found is not None
    assert reason in found.reason
    assert found.seconds == seconds


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [
        ("aws", 404, "not found"),
        ("gcp", 200, "FALSE"),
        ("azure", 200, '{"DocumentIncarnation": 1, "Events": []}'),
        ("azure", 200, _azure("Freeze", "me")),
        ("azure", 200, _azure("Preempt", "other")),
        ("http", 200, " "),
        ("http", 200, "false"),
        ("http", 404, "gone"),
    ],
)
def test_answers_without_a_notice(name: str, status: int, body: str) -> None:
    assert notice_in(WebSource(name, "", ""), status, body, NOW, "me") is None


@pytest.mark.parametrize(
    ("name", "status", "body"), [("aws", 500, ""), ("aws", 200, "<html>"), ("azure", 200, "[]")]
)
def test_answers_of_another_form_are_errors(name: str, status: int, body: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        notice_in(WebSource(name, "", ""), status, body, NOW, "me")


def test_notices_travel_as_bytes() -> None:
    for notice in (Notice("SIGTERM"), Notice("x", 2.5, withdrawn=True)):
        assert Notice.from_bytes(notice.to_bytes()) == notice
    with pytest.raises(ValueError, match="notice"):
        Notice.from_bytes(b"[]")
    with pytest.raises(ValueError, match=r"."):
        Notice.from_bytes(b"\xff{")


def test_a_message_names_host_reason_and_seconds() -> None:
    assert mentions(Notice("SIGUSR1", 29.6).describe("node-7"), "node-7", "SIGUSR1", "30")
    assert mentions(Notice("x", withdrawn=True).describe("node-7"), "node-7", "x")
