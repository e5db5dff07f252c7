"""The command ``farandole dashboard``: a process with a page, until Ctrl-C."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

from farandole.cli import main
from farandole.job.runs.home import RunsHome
from farandole.job.runs.states import RunState
from tests.kits.messages import mentioning, mentions
from tests.kits.written_runs import written_run


@pytest.fixture
def process(home: RunsHome) -> Iterator[subprocess.Popen[str]]:
    run = written_run(home, state=RunState.RUNNING)
    command = [sys.executable, "-m", "farandole", "dashboard", run.run_id, "--port", "0"]
    with subprocess.Popen(
        [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def test_the_page_is_served_until_control_c(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    address = urlsplit(process.stdout.readline().strip())
    assert address.hostname == "127.0.0.1"
    query = dict(parse_qsl(address.query))
    token = {"authorization": f"Bearer {query['token']}"}
    connection = http.client.HTTPConnection(address.hostname, address.port or 0, timeout=30)
    connection.request("GET", "/api/runs", headers=token)
    assert query["run"] in connection.getresponse().read().decode()
    connection.request("GET", "/api/runs")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 401
    connection.request("GET", "/api/events", headers=token)
    stream = connection.getresponse()
    assert stream.readline().startswith(b"retry")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output == ""
    assert "Traceback" not in errors
    assert "Cancel" not in errors


def test_a_port_in_use_is_an_error_if_it_was_given(
    home: RunsHome, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--no-browser", "--port", str(port)]) == 2
    assert mentions(capsys.readouterr().err, "127.0.0.1", str(port), "--port")
    assert main(["dashboard", "--port", "70000"]) == 2
    assert mentions(capsys.readouterr().err, "--port", "70000")
    assert main(["dashboard", "none"]) == 2


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_named_with_its_cure(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from farandole.cli import main; sys.exit(main(['dashboard', '--no-browser']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert mentions(done.stderr, package, "pip install", "starlette", "uvicorn")


def test_only_the_given_host_is_served(home: RunsHome) -> None:
    from farandole.dashboard.server.serve import bound
    from farandole.errors import SettingsError

    with pytest.raises(SettingsError, match=mentioning("192.0.2.1", "--host")):
        bound("192.0.2.1", 0, exactly=True)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        bound("127.0.0.1", taken.getsockname()[1], exactly=False) as other,
    ):
        assert other.getsockname()[1] != taken.getsockname()[1]
