"""The driver's loop with simulated workers."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from farandole.base.types import Slot
from farandole.errors import JobFailedError, PeerLostError
from farandole.job.config import Settings
from farandole.job.launch.display import Display
from farandole.job.launch.job import Job
from farandole.job.launch.output import OutputStreams
from farandole.job.launch.plan import plan
from farandole.job.launch.watch import Interrupted, Watch
from farandole.job.report import keys
from farandole.job.report.outcome import Outcome
from farandole.net.handshake import new_secret
from farandole.net.store import StoreServer
from tests.kits.messages import mentioning, mentions


class Played:
    """A simulated rank that runs ``act``, and ends on request."""

    def __init__(self, slot: Slot, act: Callable[[Played], None]) -> None:
        self.slot, self._act = slot, act
        self.code: int | None = None
        self.ended = 0.0
        self.stdout, self._out = os.pipe()
        self.stderr, self._err = os.pipe()

    def poll(self) -> int | None:
        return self.code

    def alive(self) -> bool:
        return self.code is None

    def activity(self) -> str:
        return ""

    def signal(self, number: int) -> None: ...

    def terminate(self) -> None:
        if self.code is None:
            self._act(self)
            self.end(-signal.SIGTERM)

    kill = terminate

    def end(self, code: int, out: str = "", err: str = "") -> None:
        if self.code is None:
            os.write(self._out, out.encode())
            os.write(self._err, err.encode())
            os.close(self._out)
            os.close(self._err)
            self.code = code


def interrupt(watch: Watch, workers: Sequence[Played]) -> None:
    with watch:
        watch.follow(workers)
        signal.raise_signal(signal.SIGINT)
        watch.until_done()


def test_a_program_that_uses_a_signal_itself_keeps_it(tmp_path: Path) -> None:
    store = StoreServer(new_secret())
    watch = Watch(
        Job(np=1, settings=Settings(), display=Display()),
        store,
        OutputStreams(1, io.StringIO(), io.StringIO()),
    )
    try:
        with (tmp_path / "stacks").open("w") as file:
            faulthandler.register(signal.SIGUSR1, file)
            try:
                with watch:
                    signal.raise_signal(signal.SIGUSR1)
                    assert signal.getsignal(signal.SIGUSR2) != signal.SIG_DFL
            finally:
                faulthandler.unregister(signal.SIGUSR1)
    finally:
        store.close()
    assert mentions((tmp_path / "stacks").read_text(), "most recent call")
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_ranks_that_lose_terminated_ranks_are_not_reported() -> None:
    """Ranks on other hosts get the request at different times. Other output of a program is shown."""
    store = StoreServer(new_secret())
    out, err = io.StringIO(), io.StringIO()
    streams = OutputStreams(3, out, err)

    def lost(first: Played) -> None:
        """Rank 0 ends, and rank 1 sees it before the driver ends rank 1."""
        error = PeerLostError("rank 0 was lost", 0)
        store.receive(keys.outcome(1), Outcome.of(error).to_bytes())
        text = (
            "Traceback (most recent call last):\nfarandole.errors.PeerLostError: rank 0 was lost\n"
        )
        workers[1].end(1, out="step 7\n", err=f"almost done\n{text}")

    def failed(third: Played) -> None:
        store.receive(keys.outcome(2), Outcome.of(ValueError("no space")).to_bytes())
        third.end(
            1, out="saved\n", err="Traceback (most recent call last):\nValueError: no space\n"
        )

    slots = plan(None, 3)
    workers = [
        Played(slots[0], lost),
        Played(slots[1], lambda rank: None),
        Played(slots[2], failed),
    ]
    try:
        with pytest.raises(Interrupted) as caught:
            interrupt(
                Watch(Job(np=3, settings=Settings(), display=Display()), store, streams), workers
            )
        streams.close()
    finally:
        store.close()
    assert (str(caught.value), caught.value.exit_code) == ("the job was ended by SIGINT", 130)
    assert sorted(out.getvalue().splitlines()) == ["[1]<stdout>:step 7", "[2]<stdout>:saved"]
    assert sorted(err.getvalue().splitlines()) == [
        "[1]<stderr>:almost done",
        "[2]<stderr>:Traceback (most recent call last):",
        "[2]<stderr>:ValueError: no space",
    ]


def test_the_first_of_ranks_that_end_together_is_the_cause() -> None:
    """Ranks that lose it and end by os._exit, which reports nothing, come later."""
    store = StoreServer(new_secret())
    workers = [Played(slot, lambda rank: None) for slot in plan(None, 3)]
    for worker, ended in zip(workers, (3.0, 2.0, 1.0), strict=True):
        worker.ended = ended
        worker.end(1, err=f"rank {worker.slot.rank}\n")
    streams = OutputStreams(3, io.StringIO(), io.StringIO())
    watch = Watch(Job(np=3, settings=Settings(), display=Display()), store, streams)
    try:
        with watch:
            watch.follow(workers)
            with pytest.raises(JobFailedError) as caught:
                watch.until_done()
        streams.close()
    finally:
        store.close()
    assert caught.value.rank == 2


def test_a_rank_that_cannot_be_ended_is_reported_once() -> None:
    """Ending it takes seconds. Its host may hang."""
    calls: list[None] = []

    class Hanging(Played):
        def terminate(self) -> None:
            calls.append(None)

        def kill(self) -> None: ...

    slots = plan(None, 2)
    workers = [Played(slots[0], lambda rank: None), Hanging(slots[1], lambda rank: None)]
    workers[0].end(3)
    store = StoreServer(new_secret())
    streams = OutputStreams(2, io.StringIO(), io.StringIO())
    watch = Watch(Job(np=2, settings=Settings(grace_seconds=2), display=Display()), store, streams)

    def end() -> None:
        with watch:
            watch.follow(workers)
            watch.until_done()

    try:
        with pytest.raises(JobFailedError, match=mentioning("Rank 0", "code 3")):
            end()
    finally:
        store.close()
    assert len(calls) == 1
    workers[1].end(0)
