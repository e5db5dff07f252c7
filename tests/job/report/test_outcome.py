from __future__ import annotations

import subprocess
import sys

import pytest

from farandole.errors import PeerLostError, RendezvousError, ShutDownError
from farandole.job.report.outcome import Outcome
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer

VICTIM = Outcome(
    status="victim", kind="PeerLostError", message="rank 1 went away", lost=1, traceback="T0"
)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class TestOutcome:
    def test_an_outcome_holds_the_error_of_the_rank(self) -> None:
        outcome = Outcome.of(raised(ValueError("boom")))
        assert (outcome.status, outcome.kind, outcome.message) == ("error", "ValueError", "boom")
        assert "ValueError: boom" in outcome.traceback
        assert outcome.host

    @pytest.mark.parametrize("error", [PeerLostError("gone", 3), ShutDownError("rank 1 left")])
    def test_a_victim(self, error: Exception) -> None:
        assert Outcome.of(raised(error)).status == "victim"

    def test_a_victim_that_raised_something_else(self) -> None:
        assert (
            Outcome.of(raised(RuntimeError("training failed"), PeerLostError("gone", 3))).lost == 3
        )

    def test_a_victim_of_which_a_framework_tells(self) -> None:
        text = (
            "Got the following error when running the callback: {}: rank 0 has left\n\nAt:\n "
            " a.py(1): f"
        )
        for kind, status in (
            ("PeerLostError", "victim"),
            ("ShutDownError", "victim"),
            ("MismatchError", "error"),
        ):
            assert Outcome.of(raised(RuntimeError(text.format(kind)))).status == status
        of_xla = (
            "INTERNAL: HorovodInternalError: rank 1, allreduce():"
            f" {ShutDownError('(Rank 0 shut down.)')} [failure 1]"
        )
        assert Outcome.of(raised(RuntimeError(of_xla))).status == "victim"

    def test_a_victim_that_hides_the_handled_error(self) -> None:
        def handle() -> None:
            try:
                raise ShutDownError
            except ShutDownError:
                raise KeyError("in the handler") from None

        with pytest.raises(KeyError) as caught:
            handle()
        assert Outcome.of(caught.value).status == "victim"

    def test_a_rank_that_waited_in_init_is_a_victim(self) -> None:
        outcome = Outcome.of(raised(RendezvousError.late([2, 3], 30.0)))
        assert (outcome.status, outcome.kind, outcome.lost) == ("victim", "RendezvousError", 2)

    def test_a_rank_without_a_wire_is_no_victim(self) -> None:
        assert Outcome.of(raised(RendezvousError("rank 1 is missing"))).status == "error"

    def test_exceptions_that_go_in_circles(self) -> None:
        first, second = ValueError("a"), ValueError("b")
        first.__cause__, second.__cause__ = second, first
        assert Outcome.of(first).status == "error"

    def test_an_error_whose_text_cannot_be_made(self) -> None:
        class Faulty(Exception):
            def __str__(self) -> str:
                raise KeyError("detail")

        outcome = Outcome.of(raised(Faulty()))
        assert (outcome.status, outcome.kind) == ("error", "Faulty")
        assert outcome.message == "<no text: KeyError in Faulty.__str__>"

    def test_travels_as_bytes(self) -> None:
        assert Outcome.from_bytes(VICTIM.to_bytes()) == VICTIM

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"null",
            b"[1]",
            b'{"status": "ok"}',
            VICTIM.to_bytes().replace(b'"victim"', b'"weary"'),
            VICTIM.to_bytes().replace(b'"lost": ', b'"lost": "1", "x": '),
            b"\xff\xfe",
            b"[" * 100_000,
        ],
    )
    def test_a_malformed_outcome_is_an_error(self, data: bytes) -> None:
        with pytest.raises(ValueError):
            Outcome.from_bytes(data)


PROGRAM = """
import sys
from farandole.job.report import reporter
from farandole.net.store import StoreClient
client = StoreClient(sys.argv[1], sys.argv[2])
reporter.install(client, 3)
reporter.install(client, 3)
{}
"""


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("raise ValueError('boom')", "error", 1),
        ("from farandole.errors import PeerLostError; raise PeerLostError('gone', 2)", "victim", 1),
        ("sys.exit(3)", "ok", 3),
        ("pass", "ok", 0),
        ("client.close(); raise ValueError('boom')", "error", 1),
        ("sys.excepthook = lambda *_: None; raise ValueError('boom')", "error", 1),
        (
            (
                "import os\nif os.fork() == 0: raise KeyError('a child of ours')\nos.wait(); raise"
                " ValueError('boom')"
            ),
            "error",
            1,
        ),
    ],
    ids=["error", "victim", "exit", "end", "closed", "hook-replaced", "forked-child"],
)
def test_install_reports_how_the_process_ends(body: str, status: str, code: int) -> None:
    secret = new_secret()
    store = StoreServer(secret)
    try:
        command = [sys.executable, "-c", PROGRAM.format(body), store.address, secret]
        done = subprocess.run(command, timeout=100, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        reported = store.get("outcome/3")
        assert reported is not None
        outcome = Outcome.from_bytes(reported)
        assert outcome.status == status
        if status == "error":
            assert outcome.kind == "ValueError"
            assert "boom" in done.stderr or "hook" in body, "the traceback is printed as usual"
    finally:
        store.close()


def test_an_error_of_a_keras_layer_in_two_lines() -> None:
    """The first line only names the layer."""
    text = (
        "Exception encountered when calling Dense.call().\n\n\x1b[1mbad shape (8, 3)\x1b[0m\n\nmore"
    )
    words = Outcome(status="error", kind="ValueError", message=text).words
    assert words.endswith(
        "ValueError: Exception encountered when calling Dense.call(). bad shape (8, 3)"
    )
    assert Outcome(status="error", kind="OSError", message="a\nb").words.endswith("OSError: a")
