from __future__ import annotations

import linecache
import random
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

from farandole.errors import PeerLostError, RendezvousError, ShutDownError
from farandole.handshake import new_secret
from farandole.launch.outcome import Event, Outcome, describe, exit_status, explain, with_lines
from farandole.store import StoreServer

HOSTS = ["alpha", "alpha", "beta", "beta"]
VICTIM = Outcome(status="victim", kind="PeerLostError", message="rank 1 went away", lost=1, traceback="T0")
ERROR = Outcome(status="error", kind="ValueError", message="boom\nmore", traceback="Traceback ...\nValueError: boom")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class TestOutcome:
    def test_an_error_of_its_own(self) -> None:
        outcome = Outcome.of(raised(ValueError("boom")))
        assert (outcome.status, outcome.kind, outcome.message) == ("error", "ValueError", "boom")
        assert "ValueError: boom" in outcome.traceback
        assert outcome.host

    def test_lines_that_only_the_driver_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cell = ["def train():\n", "    return undefined\n"]
        monkeypatch.setitem(linecache.cache, "/tmp/cell.py", (0, None, cell, "/tmp/cell.py"))
        trace = (
            "Traceback (most recent call last):\n"
            '  File "/tmp/cell.py", line 2, in train\n'
            '  File "/no/such/file.py", line 2, in f\n'
            '  File "/tmp/cell.py", line 2, in g\n'
            "    something_else()\n"
            "NameError: name 'undefined' is not defined\n"
        )
        frame = '  File "/tmp/cell.py", line 2, in train\n'
        assert with_lines(trace) == trace.replace(frame, f"{frame}    return undefined\n")

    @pytest.mark.parametrize("error", [PeerLostError("gone", 3), ShutDownError("rank 1 left")])
    def test_a_victim(self, error: Exception) -> None:
        assert Outcome.of(raised(error)).status == "victim"

    def test_a_victim_that_raised_something_else(self) -> None:
        assert Outcome.of(raised(RuntimeError("training failed"), PeerLostError("gone", 3))).lost == 3

    def test_a_victim_that_hides_what_it_handled(self) -> None:
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

    def test_a_wire_that_cannot_be_made_is_no_victims_tale(self) -> None:
        assert Outcome.of(raised(RendezvousError("rank 1 is missing"))).status == "error"

    def test_exceptions_that_go_in_circles(self) -> None:
        first, second = ValueError("a"), ValueError("b")
        first.__cause__, second.__cause__ = second, first
        assert Outcome.of(first).status == "error"

    def test_travels_as_bytes(self) -> None:
        assert Outcome.from_bytes(VICTIM.to_bytes()) == VICTIM

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"{", b"null", b"[1]", b'{"status": "ok"}', VICTIM.to_bytes().replace(b'"victim"', b'"weary"'),
            VICTIM.to_bytes().replace(b'"lost": ', b'"lost": "1", "x": '), b"\xff\xfe", b"[" * 100_000,
        ],
    )  # fmt: skip
    def test_what_is_none_is_an_error(self, data: bytes) -> None:
        with pytest.raises(ValueError):
            Outcome.from_bytes(data)


class TestExplain:
    def test_nothing_happened(self) -> None:
        assert explain([], HOSTS) is None
        assert explain([Event(0, code=0), Event(1, outcome=Outcome(status="ok"))], HOSTS) is None

    def test_an_error(self) -> None:
        verdict = explain([Event(2, outcome=ERROR), Event(2, code=1), Event(0, outcome=VICTIM)], HOSTS)
        assert verdict is not None
        assert (verdict.rank, verdict.patience, verdict.exit_code) == (2, 0.0, 1)
        assert verdict.message == (
            "Rank 2 on beta failed: ValueError: boom (exited with code 1)\n"
            "Traceback ...\nValueError: boom\nRank 0 failed only in consequence."
        )
        assert verdict.traceback == ERROR.traceback

    def test_a_signal(self) -> None:
        verdict = explain([Event(3, outcome=VICTIM), Event(1, code=-9)], HOSTS)
        assert verdict is not None
        assert (verdict.rank, verdict.exit_code) == (1, 137)
        assert "died of signal 9 (SIGKILL): killed, perhaps by the out-of-memory killer" in verdict.message

    def test_a_code_and_the_last_lines(self) -> None:
        verdict = explain([Event(0, code=3)], HOSTS, {0: "usage: train.py\nerror: no data\n"})
        assert verdict is not None
        assert verdict.patience > 0, "it may have caught what a victim gets"
        assert verdict.message.endswith("code 3\nIts last lines on stderr:\nusage: train.py\nerror: no data")

    def test_the_same_failure_everywhere_is_told_once(self) -> None:
        events = [Event(rank, code=2) for rank in (1, 0, 2, 3)]
        verdict = explain(events, HOSTS, dict.fromkeys(range(4), "SyntaxError: invalid syntax"))
        assert verdict is not None
        assert verdict.message.count("SyntaxError") == 1
        assert "Ranks 0, 2-3 failed in the same way." in verdict.message
        assert (verdict.patience, verdict.apart) == (0.0, ())

    def test_another_failure_is_told_apart(self) -> None:
        verdict = explain([Event(1, outcome=ERROR), Event(0, code=4)], HOSTS)
        assert verdict is not None
        assert verdict.apart == (0,)

    def test_a_victim_waits_for_its_cause(self) -> None:
        verdict = explain([Event(0, outcome=VICTIM)], HOSTS)
        assert verdict is not None
        assert verdict.patience == 3.0
        assert verdict.rank == 1, "the one that was lost"
        assert "waited in vain for rank 1 on alpha" in verdict.message

    def test_a_rank_that_finished_early(self) -> None:
        shut = Outcome(status="victim", kind="ShutDownError", message="Horovod has been shut down.")
        events = [Event(1, outcome=Outcome(status="ok")), Event(1, code=0)]
        events += [event for rank in (0, 2, 3) for event in (Event(rank, outcome=shut), Event(rank, code=1))]
        verdict = explain(events, HOSTS)
        assert verdict is not None
        assert (verdict.rank, verdict.exit_code, verdict.patience) == (1, 1, 0.0)
        assert "Rank 1 on alpha finished (exit code 0) while ranks 0, 2-3 still waited" in verdict.message

    def test_a_rank_that_is_about_to_finish(self) -> None:
        """It has said goodbye; its process takes its time."""
        shut = Outcome.of(raised(ShutDownError("(Rank 0 shut down)", 0)))
        verdict = explain([Event(1, outcome=shut), Event(1, code=1)], HOSTS[:2])
        assert verdict is not None
        assert verdict.rank == 0
        assert verdict.message.startswith(
            "Rank 0 on alpha called shutdown() or came to its end while rank 1 still waited for an exchange with it: "
            "every rank must make the same calls (the same number of batches, for instance"
        )

    def test_only_victims(self) -> None:
        events = [Event(0, outcome=VICTIM), Event(1, outcome=VICTIM)]
        verdict = explain(events, HOSTS[:2])
        assert verdict is not None
        assert verdict.rank == -1
        assert verdict.message.startswith("Ranks 0-1 lost each other, and no cause was seen.\nRank 0 said: rank 1 went")

    def test_one_victim_alone(self) -> None:
        """It lost somebody, not 'each other'."""
        nobody = Outcome(status="victim", kind="ShutDownError", message="gone")
        for outcome, rank, whom in ((VICTIM, 1, "the other ranks"), (nobody, 3, "the other ranks")):
            verdict = explain([Event(rank, outcome=outcome)], HOSTS)
            assert verdict is not None
            assert verdict.message.startswith(
                f"Rank {rank} on {HOSTS[rank]} lost the connection to {whom}, and no cause"
            )

    def test_the_place_in_the_users_program_stands_for_a_victims_traceback(self) -> None:
        trace = (
            "Traceback (most recent call last):\n"
            '  File "/home/me/train.py", line 9, in main\n    loss.backward()\n    ^^^^\n'
            '  File "/env/lib/python3.12/site-packages/torch/_tensor.py", line 3, in backward\n    x()\n'
            '  File "/src/farandole/engine/engine.py", line 1, in run\n    wait()\n'
            "farandole.errors.ShutDownError: Horovod ...\n"
        )
        error = ShutDownError("(Rank 1 ended while rank 0 waited for allreduce.x.)")
        shut = Outcome(status="victim", kind="ShutDownError", message=str(error), traceback=trace)
        verdict = explain([Event(1, code=0), Event(0, outcome=shut), Event(0, code=1)], HOSTS[:2])
        assert verdict is not None
        assert verdict.traceback == trace
        assert verdict.message.split("\n")[1:] == [
            "Rank 0 was at /home/me/train.py, line 9: loss.backward()",
            "Rank 1 ended while rank 0 waited for allreduce.x.",
        ]

    def test_ranks_that_never_came(self) -> None:
        late = Outcome.of(raised(RendezvousError.late([1, 2], 5.0)))
        events = [Event(0, outcome=late), Event(3, outcome=late), Event(2, code=0)]
        verdict = explain(events, HOSTS, activity={1: "process 7 (x) waits", 0: "?"})
        assert verdict is not None
        assert (verdict.rank, verdict.patience) == (1, 0.0)
        assert verdict.message == (
            f"R{late.message[1:]}\nRank 1 on alpha: process 7 (x) waits\nRank 2 on beta: has ended (exit code 0)\n"
            "Ranks 0, 3 waited in vain."
        )

    def test_sys_exit_after_catching_a_lost_peer_is_not_the_cause(self) -> None:
        events = [Event(0, outcome=Outcome(status="ok")), Event(0, code=1), Event(2, code=-11)]
        verdict = explain(events, HOSTS)
        assert verdict is not None
        assert verdict.rank == 2


class Story(NamedTuple):
    size: int
    cause: int
    victims: set[int]
    events: list[Event]


def story(rng: random.Random) -> Story:
    """A job in which one rank fails and some others in consequence, its events seen in any order."""
    size = rng.randint(1, 9)
    cause = rng.randrange(size)
    cause_events = rng.choice([
        [Event(cause, outcome=ERROR), Event(cause, code=1)],
        [Event(cause, outcome=ERROR)],
        [Event(cause, code=-rng.choice([4, 6, 7, 8, 9, 11, 15]))],
        [Event(cause, outcome=Outcome(status="ok")), Event(cause, code=-11)],
        [Event(cause, code=rng.choice([1, 2, 137, 255]))],
        [Event(cause, outcome=Outcome(status="ok")), Event(cause, code=3)],
    ])  # fmt: skip
    victims = {rank for rank in range(size) if rank != cause and rng.random() < 0.7}
    per_rank = {cause: cause_events}
    for rank in victims:
        lost = Outcome(status="victim", kind="PeerLostError", message="gone", lost=rng.choice([cause, *victims]))
        ends = [[], [Event(rank, code=1)], [Event(rank, code=-6)], [Event(rank, code=0)]]
        per_rank[rank] = [Event(rank, outcome=lost), *rng.choice(ends)]
    events: list[Event] = []
    queues = [list(queue) for queue in per_rank.values()]
    while queues:
        queue = rng.choice(queues)
        events.append(queue.pop(0))
        queues = [each for each in queues if each]
    return Story(size, cause, victims, events)


@pytest.mark.parametrize("seed", range(10))
def test_victims_are_never_blamed(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        told = story(rng)
        hosts = ["here"] * told.size
        final = explain(told.events, hosts)
        assert final is not None
        assert final.rank == told.cause, told
        for length in range(len(told.events)):
            verdict = explain(told.events[:length], hosts)
            if verdict is not None:
                assert verdict.rank not in {
                    e.rank for e in told.events[:length] if e.outcome and e.rank in told.victims
                }
                assert verdict.rank == told.cause or verdict.patience > 0, "a wrong cause must not be certain"


@pytest.mark.parametrize(
    ("code", "status"), [(1, 1), (7, 7), (255, 255), (-9, 137), (-15, 143), (-2, 130), (0, 1), (None, 1)]
)
def test_exit_status(code: int | None, status: int) -> None:
    assert exit_status(code) == status


def test_codes_in_words() -> None:
    assert describe(5) == "exited with code 5"
    assert "SIGSEGV" in describe(-11)
    assert "segmentation fault" in describe(-signal.SIGSEGV)
    assert "SIGKILL" in describe(137)
    assert "a shell says so" in describe(137)
    assert describe(255) == "exited with code 255"
    assert describe(-63).startswith("died of signal 63")


PROGRAM = """
import sys
from farandole.launch import outcome
from farandole.store import StoreClient
client = StoreClient(sys.argv[1], sys.argv[2])
outcome.install(client, 3)
outcome.install(client, 3)
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
            "import os\nif os.fork() == 0: raise KeyError('a child of ours')\nos.wait(); raise ValueError('boom')",
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
        done = subprocess.run(command, timeout=30, capture_output=True, text=True, check=False)
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
