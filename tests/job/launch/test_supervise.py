"""Replayed events: the time and the kind of a job's end."""

from __future__ import annotations

from farandole.job.launch.explain.cause import explain
from farandole.job.launch.explain.events import Event, Verdict
from farandole.job.launch.supervise import JobState, Supervisor
from farandole.job.report.outcome import Outcome

ERROR = Outcome(status="error", kind="ValueError", message="boom")
VICTIM = Outcome(status="victim", kind="PeerLostError", message="rank 1 went away", lost=1)
HOSTS = ["a", "a", "b"]


class Story:
    """Events at their times; ``at`` returns the decision at a time."""

    def __init__(self) -> None:
        self.supervisor = Supervisor(3)

    def at(self, now: float, *events: Event, silent: int = -1) -> JobState:
        for event in events:
            self.supervisor.see(event)
        if silent >= 0:
            self.supervisor.silent(silent, now)
        return self.supervisor.decide(now, self.verdict())

    def verdict(self) -> Verdict | None:
        return explain(self.supervisor.events, HOSTS) if self.supervisor.failing else None


def test_all_end_well() -> None:
    story = Story()
    assert story.at(0.0) is JobState.RUNNING
    assert story.at(9.0, Event(0, code=0), Event(2, code=0)) is JobState.RUNNING
    assert story.supervisor.running == 1
    assert story.at(99.0, Event(1, code=0)) is JobState.ENDED


def test_a_rank_reports_after_all_have_ended() -> None:
    story = Story()
    assert story.at(0.0, *(Event(rank, code=0) for rank in range(3))) is JobState.ENDED
    assert story.at(0.1, Event(1, outcome=ERROR), silent=1) is JobState.FAILED


def test_an_error_waits_for_its_traceback_and_output() -> None:
    story = Story()
    assert story.at(10.0, Event(1, outcome=ERROR)) is JobState.FAILING
    assert story.at(11.9) is JobState.FAILING, "its process has not ended"
    assert story.at(11.95, Event(1, code=1)) is JobState.FAILING, "its pipes are open"
    assert story.at(12.4) is JobState.FAILING
    assert story.at(12.5, silent=1) is JobState.FAILING, "the others"
    assert story.at(12.69) is JobState.FAILING
    assert story.at(12.71) is JobState.FAILED


def test_a_rank_that_hangs_after_its_error_is_ended() -> None:
    story = Story()
    assert story.at(0.0, Event(1, outcome=ERROR)) is JobState.FAILING
    assert story.at(2.1) is JobState.FAILING
    assert story.at(2.4) is JobState.FAILED


def test_impossible_reports_are_not_awaited() -> None:
    story = Story()
    assert story.at(0.0, Event(0, code=0), Event(2, code=0)) is JobState.RUNNING
    assert story.at(1.0, Event(1, outcome=ERROR), Event(1, code=1), silent=1) is JobState.FAILED


def test_a_victim_leaves_time_for_its_cause() -> None:
    story = Story()
    assert story.at(0.0, Event(0, outcome=VICTIM), Event(0, code=1), silent=0) is JobState.FAILING
    assert story.at(1.0, Event(1, code=-9), silent=1) is JobState.FAILING
    assert story.at(1.21) is JobState.FAILED
    verdict = story.verdict()
    assert verdict is not None
    assert verdict.rank == 1


def test_a_rank_whose_pipes_have_just_closed_is_about_to_exit() -> None:
    supervisor = Supervisor(1)
    assert not supervisor.exiting(0.0)
    supervisor.silent(0, 5.0)
    assert supervisor.exiting(5.4)
    assert not supervisor.exiting(5.6)
    supervisor.see(Event(0, code=0))
    assert not supervisor.exiting(5.1)
