"""The watch of one host: files, metadata services, signals."""

from __future__ import annotations

import http.server
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.notices.sources import WebSource, parse_sources
from farandole.job.elastic.notices.watch import NoticeWatch, watch_host
from farandole.job.elastic.notices.web import Metadata


class Service(http.server.ThreadingHTTPServer):
    """A metadata service. ``answers``: by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.token = "secret"

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers))
        status, text = self.server.answers.get(self.path, (404, ""))
        if self.command == "PUT":
            status, text = 200, self.server.token
        elif "x-aws-ec2-metadata-token" in headers:
            status = status if headers["x-aws-ec2-metadata-token"] == self.server.token else 401
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _watch(text: str, env: Mapping[str, str] = {}) -> tuple[NoticeWatch, list[Notice]]:
    heard: list[Notice] = []
    return NoticeWatch("h1", parse_sources(text, env), heard.append), heard


def test_a_file_comes_and_goes(tmp_path: Path) -> None:
    watch, heard = _watch(f"file:{tmp_path}/leave-{{host}}")
    watch.poll()
    (tmp_path / "leave-h2").touch()
    watch.poll()
    assert not heard
    (tmp_path / "leave-h1").touch()
    watch.poll()
    watch.poll()
    (tmp_path / "leave-h1").unlink()
    watch.poll()
    assert [each.withdrawn for each in heard] == [False, True]
    assert str(tmp_path / "leave-h1") in heard[0].reason


def test_amazon_is_asked_with_a_token(service: Service) -> None:
    watch, heard = _watch("aws", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": service.base})
    path = "/latest/meta-data/spot/instance-action"
    watch.poll()
    assert not heard
    service.token = "another"  # the first one is no longer valid
    service.answers[path] = 200, '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'
    watch.poll()
    assert "terminate" in heard[0].reason
    assert heard[0].seconds is not None
    assert [verb for verb, *_ in service.asked] == ["PUT", "GET", "GET", "PUT", "GET"]


def test_google_is_asked_with_its_header(service: Service) -> None:
    watch, heard = _watch("gcp", {"GCE_METADATA_HOST": service.base.removeprefix("http://")})
    service.answers["/computeMetadata/v1/instance/preempted"] = 200, "TRUE"
    watch.poll()
    assert len(heard) == 1
    assert service.asked[0][2]["metadata-flavor"] == "Google"


def test_azure_names_the_machine(service: Service) -> None:
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    asked = Metadata(WebSource("azure", service.base, path, {"Metadata": "true"}))
    service.answers[name] = 200, "vm-1"
    event = '{"Events": [{"EventType": "Preempt", "Resources": ["%s"], "NotBefore": ""}]}'
    service.answers[path] = 200, event % "vm-2"
    assert asked.find() is None
    service.answers[path] = 200, event % "vm-1"
    found = asked.find()
    assert found is not None
    assert found.seconds is None
    assert {headers["metadata"] for *_, headers in service.asked} == {"true"}


def test_a_failing_service_withdraws_nothing(service: Service) -> None:
    watch, heard = _watch(f"{service.base}/leave")
    service.answers["/leave"] = 200, "now"
    watch.poll()
    service.answers["/leave"] = 503, ""
    watch.poll()
    service.answers["/leave"] = 404, ""
    watch.poll()
    assert [each.withdrawn for each in heard] == [False, True]


def test_a_thread_looks_for_notices(tmp_path: Path) -> None:
    heard: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    watch = watch_host("h1", f"file:{tmp_path}/leave", heard.put)
    (tmp_path / "leave").touch()
    assert not heard.get(timeout=30.0).withdrawn
    watch.close()
    watch._thread.join(30.0)
    assert not watch._thread.is_alive()


SIGNALS = """
import os, signal, sys, threading
from farandole.job.elastic.notices.signals import SignalNotices
from farandole.job.elastic.notices.sources import parse_sources
heard, ends, ran = threading.Semaphore(0), threading.Event(), []
signal.signal(signal.SIGUSR1, lambda *_: ran.append("own"))
def on_signal(number):
    print(signal.Signals(number).name, flush=True)
    heard.release()
    return not ends.is_set()
assert SignalNotices(parse_sources("signal:TERM,signal:USR1"), on_signal).install()
for number in (signal.SIGTERM, signal.SIGUSR1):
    os.kill(os.getpid(), number)
    heard.acquire()
assert ran == ["own"], ran
ends.set()
os.kill(os.getpid(), signal.SIGTERM)
while True:
    signal.pause()
"""


def test_a_signal_is_a_notice_until_it_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout.split() == ["SIGTERM", "SIGUSR1", "SIGTERM"]
