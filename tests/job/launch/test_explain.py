from __future__ import annotations

import linecache
import random
import re
import resource
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import farandole
from farandole.errors import PeerLostError, RendezvousError, ShutDownError
from farandole.job.launch.explain.cause import explain
from farandole.job.launch.explain.events import Event
from farandole.job.launch.explain.exit_codes import describe, exit_status
from farandole.job.launch.explain.tracebacks import with_lines
from farandole.job.report.outcome import SILENT, Outcome
from tests.kits.messages import mentions

HOSTS = ["alpha", "alpha", "beta", "beta"]
VICTIM = Outcome(
    status="victim", kind="PeerLostError", message="rank 1 went away", lost=1, traceback="T0"
)
ERROR = Outcome(
    status="error",
    kind="ValueError",
    message="boom\nmore",
    traceback="Traceback ...\nValueError: boom",
)


def test_lines_that_only_the_driver_has(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_frames_of_farandole_are_not_the_programs() -> None:
    """Every module of the package is recognized, also in the folder of a different host."""
    package = Path(farandole.__file__).parent
    modules = [path.relative_to(package) for path in package.rglob("*.py")]
    assert len(modules) > 300
    for module in modules:
        frames = (
            '  File "/me/train.py", line 7, in f\n    go()\n'
            f'  File "/x/farandole/{module}", line 1, in g\n'
        )
        victim = VICTIM._replace(traceback=frames)
        verdict = explain([Event(0, outcome=victim), Event(1, code=0)], HOSTS[:2])
        assert verdict is not None
        assert "/me/train.py, line 7: go()" in verdict.message, module


@pytest.mark.parametrize("file", ["/x/farandole/train.py", "/x/farandole/core/engine.py"])
def test_a_program_below_a_folder_named_farandole(file: str) -> None:
    """A clone's folder has the package's name, too: only modules of the package count."""
    victim = VICTIM._replace(traceback=f'  File "{file}", line 7, in f\n    go()\n')
    verdict = explain([Event(0, outcome=victim), Event(1, code=0)], HOSTS[:2])
    assert verdict is not None
    assert f"{file}, line 7" in verdict.message


def test_hosts_that_fall_silent_together() -> None:
    """None of them is the cause; if all hosts do, the cause is the driver's own network."""
    said = f"its host was lost: {SILENT}"
    events = [
        Event(2, outcome=Outcome(status="error", message=said)),
        Event(0, outcome=Outcome(status="victim", message=said)),
        Event(3, outcome=VICTIM),
    ]
    verdict = explain(events, ["alpha", "beta", "gamma", "delta"])
    assert verdict is not None
    _, together, after = verdict.message.splitlines()
    assert mentions(together, "Rank 0 on alpha", "same time")
    assert after.startswith("Rank 3 ")


def test_two_ranks_of_a_lost_host() -> None:
    said = f"its host was lost: {SILENT}"
    events = [
        Event(0, outcome=Outcome(status="error", message=said)),
        Event(1, outcome=Outcome(status="victim", message=said)),
    ]
    verdict = explain(events, ["alpha", "alpha"])
    assert verdict is not None
    assert mentions(verdict.message, "Rank 1 on alpha")
    assert "switch" not in verdict.message


class TestExplain:
    def test_a_successful_job_has_no_explanation(self) -> None:
        assert explain([], HOSTS) is None
        assert explain([Event(0, code=0), Event(1, outcome=Outcome(status="ok"))], HOSTS) is None

    @pytest.mark.parametrize(
        ("module", "cure"),
        [("farandole", sys.executable), ("horovod", "./compat")],
    )
    def test_a_python_without_farandole(self, module: str, cure: str) -> None:
        """A newcomer's first mistake: the environment of ``farandole`` is not that of ``python``."""
        tail = f"Traceback ...\nModuleNotFoundError: No module named '{module}'\n"
        verdict = explain([Event(0, code=1), Event(1, code=1)], HOSTS[:2], {0: tail, 1: tail})
        assert verdict is not None
        assert re.search(
            f"No module named '{module}'\n.*{re.escape(cure)}.*\nRank 1 failed", verdict.message
        )
        verdict = explain(
            [Event(0, code=1)], HOSTS[:1], {0: tail.replace(module, f"{module}.nonsense")}
        )
        assert verdict is not None
        assert cure not in verdict.message

    def test_an_error(self) -> None:
        verdict = explain(
            [Event(2, outcome=ERROR), Event(2, code=1), Event(0, outcome=VICTIM)], HOSTS
        )
        assert verdict is not None
        assert (verdict.rank, verdict.patience, verdict.exit_code) == (2, 0.0, 1)
        assert (
            verdict.message == "Rank 2 on beta failed: ValueError: boom (exited with code 1)\n"
            "Traceback ...\nValueError: boom\nRank 0 failed as a consequence."
        )
        assert verdict.traceback == ERROR.traceback

    def test_an_error_without_words_and_an_interrupt(self) -> None:
        """Python's exit code for KeyboardInterrupt depends on the imported modules."""
        silent = explain(
            [Event(2, outcome=Outcome(status="error", kind="AssertionError")), Event(2, code=1)],
            HOSTS,
        )
        assert silent is not None
        assert silent.message == "Rank 2 on beta failed: AssertionError (exited with code 1)"
        outcome = Outcome(status="error", kind="KeyboardInterrupt", traceback="T2")
        for code in (1, -2, 130):
            verdict = explain([Event(2, outcome=outcome), Event(2, code=code)], HOSTS)
            assert verdict is not None
            assert (verdict.message, verdict.exit_code) == (
                "Rank 2 on beta was interrupted: KeyboardInterrupt\nT2",
                130,
            )

    def test_a_lost_server_is_the_cause_before_ranks(
        self,
    ) -> None:
        text = (
            "parameter server 0 on alpha (process 7) was lost (it did nothing for 61 s), and no"
            " replica is left"
        )
        lost = Outcome(status="victim", kind="ServerLostError", message=text, traceback="T1")
        verdict = explain(
            [Event(0, outcome=VICTIM._replace(lost=-1)), Event(2, outcome=lost)], HOSTS
        )
        assert verdict is not None
        assert (verdict.rank, verdict.traceback) == (-1, "T1")
        assert verdict.patience > 0, "the driver may see how it ended"
        assert verdict.message == f"P{text[1:]}.\nRanks 0, 2 failed as a consequence."

    def test_a_signal(self) -> None:
        verdict = explain([Event(3, outcome=VICTIM), Event(1, code=-9)], HOSTS)
        assert verdict is not None
        assert (verdict.rank, verdict.exit_code) == (1, 137)
        assert mentions(verdict.message, "signal 9", "SIGKILL")

    def test_a_code_and_the_last_lines(self) -> None:
        verdict = explain([Event(0, code=3)], HOSTS, {0: "usage: train.py\nerror: no data\n"})
        assert verdict is not None
        assert verdict.patience > 0, "it may have caught what a victim gets"
        assert verdict.message.endswith(
            "code 3\nIts last lines on stderr:\nusage: train.py\nerror: no data"
        )

    def test_a_victim_that_caught_its_error_and_gave_up(self) -> None:
        """Such a rank is not the cause; if it continued, it is not a victim."""
        caught = Event(0, outcome=VICTIM._replace(status="ok"))
        verdict = explain(
            [caught, Event(0, code=1), Event(1, code=1)], HOSTS[:2], {1: "ValueError: boom"}
        )
        assert verdict is not None
        assert verdict.rank == 1
        assert verdict.message.endswith(
            "ValueError: boom\nRank 0 lost another rank before exiting with a code."
        )
        assert verdict.apart == (0,), "it may have printed more than a victim's traceback"
        verdict = explain([caught, Event(0, code=1), Event(1, code=0)], HOSTS[:2])
        assert verdict is not None
        assert "Rank 1 on alpha finished" in verdict.message
        assert verdict.apart == (0,)
        assert explain([caught, Event(0, code=0), Event(1, code=0)], HOSTS[:2]) is None

    @pytest.mark.parametrize(
        "last_line", ["farandole.errors.PeerLostError: rank 1 went", str(ShutDownError("(x)"))]
    )
    def test_an_exit_code_after_lines_about_a_lost_rank(self, last_line: str) -> None:
        """``traceback.print_exc(); os._exit(1)``: no outcome."""
        tails = {0: f"Traceback ...\n{last_line}", 1: "ValueError: boom"}
        waiting = explain([Event(0, code=1)], HOSTS[:2], tails)
        assert waiting is not None
        assert waiting.patience == 3.0
        verdict = explain([Event(0, code=1), Event(1, code=1)], HOSTS[:2], tails)
        assert verdict is not None
        assert (
            verdict.message
            == "Rank 1 on alpha exited with code 1\nIts last lines on stderr:\nValueError: boom\n"
            "Rank 0 lost another rank before exiting with a code."
        )
        assert (verdict.rank, verdict.apart, verdict.patience) == (1, (0,), 0.0)

    @pytest.mark.parametrize("code", [3, -11])
    def test_an_error_that_a_program_made_of_a_victims(self, code: int) -> None:
        """The error may be the program's, so it is the cause if there is no other."""
        own = ERROR._replace(lost=1)
        events = [Event(0, outcome=own), Event(0, code=1)]
        waiting = explain(events, HOSTS[:2])
        assert waiting is not None
        assert waiting.patience > 1, "the cause may be slow to end"
        verdict = explain([*events, Event(1, code=code)], HOSTS[:2])
        assert verdict is not None
        assert (verdict.rank, verdict.apart, verdict.patience) == (1, (0,), 0.0)
        verdict = explain([*events, Event(1, code=0)], HOSTS[:2])
        assert verdict is not None
        assert (verdict.rank, verdict.patience) == (0, 0.0)
        assert verdict.message.endswith("ValueError: boom\nRank 1 had finished earlier.")
        stalled = explain([Event(0, outcome=own._replace(kind="StalledError"))], HOSTS[:2])
        assert stalled is not None
        assert stalled.patience == 0, "it ended the job"

    def test_a_failure_common_to_all_ranks_is_reported_once(self) -> None:
        events = [Event(rank, code=2) for rank in (1, 0, 2, 3)]
        verdict = explain(events, HOSTS, dict.fromkeys(range(4), "SyntaxError: invalid syntax"))
        assert verdict is not None
        assert verdict.message.count("SyntaxError") == 1
        assert mentions(verdict.message, "Ranks 0, 2, 3", "same way")

    def test_the_same_error_at_other_lines(self) -> None:
        def event(rank: int, line: int) -> Event:
            frames = f'  File "/me/train.py", line {line}, in <module>\n    call_{line}()\n'
            ours = '  File "/x/farandole/core/engine/engine.py", line 1\n'
            return Event(rank, outcome=ERROR._replace(traceback=f"{frames}{ours}ValueError: boom"))

        verdict = explain([event(0, 7), event(1, 7), event(2, 9), event(3, 9)], HOSTS)
        assert verdict is not None
        assert verdict.message.endswith(
            "Rank 1 failed in the same way.\nRanks 2, 3 failed in the same way, at /me/train.py,"
            " line 9: call_9()"
        )
        assert (verdict.patience, verdict.apart) == (0.0, ())

    def test_a_different_failure_is_distinguished(self) -> None:
        verdict = explain([Event(1, outcome=ERROR), Event(0, code=4)], HOSTS)
        assert verdict is not None
        assert verdict.apart == (0,)

    def test_a_victim_waits_for_its_cause(self) -> None:
        verdict = explain([Event(0, outcome=VICTIM)], HOSTS)
        assert verdict is not None
        assert verdict.patience == 3.0
        assert verdict.rank == 1, "the one that was lost"
        assert mentions(verdict.message, "rank 1 on alpha")
        assert mentions(verdict.message, "exec", "hvd.shutdown()")

    def test_a_victim_of_a_rank_that_has_ended_waits_less(self) -> None:
        """The cause must have ended with that rank, unless that rank had lost another one before."""
        gone, bereft = Event(1, code=0), Event(0, outcome=VICTIM)
        also = Event(1, outcome=VICTIM._replace(status="ok", lost=2))
        own = Event(0, outcome=ERROR._replace(lost=1))
        for events, patience in (
            ([gone, bereft], 1.0),
            ([gone, own], 1.0),
            ([also, gone, bereft], 3.0),
            ([also, gone, own], 3.0),
            ([also, gone, bereft, Event(2, code=0)], 1.0),
        ):
            verdict = explain(events, HOSTS)
            assert verdict is not None
            assert verdict.patience == patience

    def test_a_rank_that_finished_early(self) -> None:
        shut = Outcome(status="victim", kind="ShutDownError", message="Horovod has been shut down.")
        events = [Event(1, outcome=Outcome(status="ok")), Event(1, code=0)]
        events += [
            event
            for rank in (0, 2, 3)
            for event in (Event(rank, outcome=shut), Event(rank, code=1))
        ]
        verdict = explain(events, HOSTS)
        assert verdict is not None
        assert (verdict.rank, verdict.exit_code, verdict.patience) == (1, 1, 0.0)
        assert (
            "Rank 1 on alpha finished (exit code 0) while ranks 0, 2, 3 waited" in verdict.message
        )

    def test_a_rank_that_is_about_to_finish(self) -> None:
        """The rank has said goodbye, and its process still runs."""
        shut = Outcome.of(ShutDownError("(Rank 0 shut down)", 0))
        verdict = explain([Event(1, outcome=shut), Event(1, code=1)], HOSTS[:2])
        assert verdict is not None
        assert verdict.rank == 0
        assert mentions(verdict.message, "Rank 0", "shutdown()", "rank 1")

    def test_only_victims(self) -> None:
        events = [Event(0, outcome=VICTIM), Event(1, outcome=VICTIM)]
        verdict = explain(events, HOSTS[:2])
        assert verdict is not None
        assert verdict.rank == -1
        first, second = verdict.message.splitlines()
        assert mentions(first, "Ranks 0, 1", "cause")
        assert mentions(second, "Rank 0", "rank 1 went away")

    def test_a_connection_that_was_cut_between_two_hosts_is_named(self) -> None:
        """For ranks of one host that lost each other, the reason is unknown."""
        order = ((2, 0), (0, 2), (1, 2))
        lost = [
            Outcome("victim", "PeerLostError", f"rank {other} {PeerLostError.BROKE}", lost=other)
            for _, other in order
        ]
        events = [
            Event(rank, outcome=outcome) for (rank, _), outcome in zip(order, lost, strict=True)
        ]
        verdict = explain(events, ["a", "a", "b"])
        assert verdict is not None
        assert verdict.rank == -1
        first, second = verdict.message.splitlines()
        assert mentions(first, "b and a", "rank 2", "rank 0", "connection")
        assert second.startswith("Rank 2 ")
        verdict = explain(events, ["a", "a", "a"])
        assert verdict is not None
        assert mentions(verdict.message, "Ranks 0-2", "cause")

    def test_a_network_that_parts_two_hosts_is_named(self) -> None:
        silent = Outcome(
            status="victim", kind="PeerLostError", lost=2, message=f"rank 2 {PeerLostError.SILENT}"
        )
        broke = Outcome(
            status="victim",
            kind="PeerLostError",
            lost=0,
            message="rank 0 was lost: its connection broke",
        )
        order = ((0, silent), (1, broke), (2, broke), (3, broke))
        verdict = explain(
            [Event(rank, outcome=outcome) for rank, outcome in order], ["a", "a", "b", "b"]
        )
        assert verdict is not None
        assert verdict.rank == -1
        first, second = verdict.message.splitlines()
        assert mentions(first, "a and b", "rank 0", "rank 2", "network")
        assert second.startswith("Rank 0 ")

    def test_one_victim_alone(self) -> None:
        """A single victim did not lose 'each other'."""
        nobody = Outcome(status="victim", kind="ShutDownError", message="gone")
        for outcome, rank, whom in ((VICTIM, 1, "the other ranks"), (nobody, 3, "the other ranks")):
            verdict = explain([Event(rank, outcome=outcome)], HOSTS)
            assert verdict is not None
            assert verdict.message.startswith(
                f"Rank {rank} on {HOSTS[rank]} lost the connection to {whom}"
            )

    def test_a_victims_traceback_is_the_line_of_the_program(self) -> None:
        trace = (
            'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in main\n   '
            " loss.backward()\n    ^^^^\n  File"
            ' "/env/lib/python3.12/site-packages/torch/_tensor.py", line 3, in backward\n    x()\n '
            ' File "/src/farandole/core/engine/engine.py", line 1, in run\n   '
            " wait()\nfarandole.errors.ShutDownError: Horovod ...\n"
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
        late = Outcome.of(RendezvousError.late([1, 2], 5.0))
        events = [Event(0, outcome=late), Event(3, outcome=late), Event(2, code=0)]
        verdict = explain(events, HOSTS, activity={1: "process 7 (x) waits", 0: "?"})
        assert verdict is not None
        assert (verdict.rank, verdict.patience) == (1, 0.0)
        assert (
            verdict.message
            == f"R{late.message[1:]}\nRank 1 on alpha: process 7 (x) waits\nRank 2 on beta: has"
            " ended (exit code 0)\nRanks 0, 3 failed as a consequence."
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
    """Return a job in which one rank fails and others in consequence, with its events in any order."""
    size = rng.randint(1, 9)
    cause = rng.randrange(size)
    cause_events = rng.choice(
        [
            [Event(cause, outcome=ERROR), Event(cause, code=1)],
            [Event(cause, outcome=ERROR)],
            [Event(cause, code=-rng.choice([4, 6, 7, 8, 9, 11, 15]))],
            [Event(cause, outcome=Outcome(status="ok")), Event(cause, code=-11)],
            [Event(cause, code=rng.choice([1, 2, 137, 255]))],
            [Event(cause, outcome=Outcome(status="ok")), Event(cause, code=3)],
        ]
    )
    victims = {rank for rank in range(size) if rank != cause and rng.random() < 0.7}
    per_rank = {cause: cause_events}
    for rank in victims:
        lost = Outcome(
            status="victim",
            kind="PeerLostError",
            message="gone",
            lost=rng.choice([cause, *victims]),
        )
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
        failure = story(rng)
        hosts = ["here"] * failure.size
        final = explain(failure.events, hosts)
        assert final is not None
        assert final.rank == failure.cause, failure
        for length in range(len(failure.events)):
            verdict = explain(failure.events[:length], hosts)
            if verdict is not None:
                assert verdict.rank not in {
                    e.rank
                    for e in failure.events[:length]
                    if e.outcome and e.rank in failure.victims
                }
                assert verdict.rank == failure.cause or verdict.patience > 0, (
                    "a wrong cause must not be certain"
                )


@pytest.mark.parametrize(
    ("code", "status"),
    [(1, 1), (7, 7), (255, 255), (-9, 137), (-15, 143), (-2, 130), (0, 1), (None, 1)],
)
def test_exit_status(code: int | None, status: int) -> None:
    assert exit_status(code) == status


def test_codes_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(5) == "exited with code 5"
    assert "SIGSEGV" in describe(-11)
    assert "segmentation fault" in describe(-signal.SIGSEGV)
    assert "SIGKILL" in describe(137)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60, 3600))
    assert mentions(describe(-9), "3600 seconds", "`ulimit -t`")
    assert mentions(describe(137), "shell")
    assert mentions(describe(-signal.SIGALRM), "SIGALRM", "signal.alarm")
    assert describe(255) == "exited with code 255"
    assert describe(-63).startswith("died of signal 63")
