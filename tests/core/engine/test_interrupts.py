"""An exception of a signal handler reaches the program; ranks continue if they can, or all end with
the cause.
"""

from __future__ import annotations

import dis
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.base.types import Buffer, DType, Kind, Request
from farandole.core.engine import (
    Engine,
    Entry,
    background,
    driver_lock,
    engine,
    handle,
    notes,
    outbox,
    unit_runner,
    wait_reports,
)
from farandole.errors import HorovodInternalError, RequestError
from farandole.job.config import Settings
from tests.kits.messages import mentions
from tests.kits.worlds import until
from tests.pool import procs, ranks

LARGE = 3_000_000
# the files whose every place a handler may raise at
OWN = {
    module.__file__
    for module in (
        background,
        driver_lock,
        engine,
        handle,
        notes,
        outbox,
        unit_runner,
        wait_reports,
    )
}


def summed(engine: Engine, name: str, value: float, count: int = 4) -> float:
    flat = np.full(count, value, np.float32)
    request = Request(name, Kind.ALLREDUCE, DType.FLOAT32, (count,))
    engine.run([Entry(request, Buffer(flat, flat, DType.FLOAT32))])
    assert flat.min() == flat.max()
    return float(flat[0])


@pytest.mark.parametrize("times", [0, 4], ids=["new", "repeated"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_collective_ends_it_on_all_ranks(
    error: type[BaseException], times: int
) -> None:
    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        for _ in range(times):
            summed(engine, "a", 1, LARGE)
        if engine.rank == 0:

            def interrupted(*args: Any, **kwargs: Any) -> None:
                raise error

            transport.allreduce = interrupted
            with pytest.raises(error):
                summed(engine, "a", 1, LARGE)
        with pytest.raises(HorovodInternalError) as caught:
            summed(engine, "a", 1, LARGE)
        engine.shutdown()
        return str(caught.value)

    for said in ranks(2, body):
        assert mentions(said, "rank 0", error.__name__)


class Preempted(Exception):
    """An exception as Slurm programs raise it shortly before their time limit."""


def preempted(number: int, frame: Any) -> None:
    raise Preempted


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_a_handler_may_raise_while_its_rank_waits_for_others(wire: str, tmp_path: Path) -> None:
    messages = tmp_path / "interrupted"

    def body(transport: Any) -> list[float]:
        engine = Engine(transport, Settings())
        for _ in range(4):
            summed(engine, "a", 1)
        sums = []
        for name in ("a", "new"):  # the short way and the long one
            if engine.rank:
                until(messages.exists, "an interrupt")
                messages.unlink()
                sums.append(summed(engine, name, 3))
            else:
                interrupted(engine, lambda name=name: summed(engine, name, 2))
                messages.touch()
            sums.append(summed(engine, "next", 1))
        engine.shutdown()
        return sums

    assert procs(2, body, wire=wire) == [[2, 2], [5, 2, 5, 2]]


def interrupted(engine: Engine, call: Callable[[], object]) -> None:
    def send() -> None:
        until(lambda: engine._idle, "waiting")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, preempted)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Preempted):
            call()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


class Interrupting:
    """A stream whose next ``send`` is interrupted before the system call."""

    def __init__(self, peer: Any) -> None:
        self.peer, self.stream = peer, peer.stream
        peer.stream = self

    def send(self, frame: Any) -> int:
        self.peer.stream = self.stream
        raise KeyboardInterrupt

    def recv(self, count: int) -> bytes:
        data: bytes = self.stream.recv(count)
        return data


def test_a_rank_interrupted_while_sending_is_still_received(tmp_path: Path) -> None:
    done = tmp_path / "rank 1 has the first sum"

    def body(transport: Any) -> str:
        engine = Engine(transport, Settings())
        summed(engine, "a", 1)
        if engine.rank:
            done.touch()
        else:
            until(done.exists, "the first sum")
            Interrupting(transport.board._peers[1])
            with pytest.raises(KeyboardInterrupt):
                summed(engine, "a", 1)
        with pytest.raises(HorovodInternalError) as caught:
            [summed(engine, "a", 1) for _ in range(2)]  # rank 1 has all that it needs for the first
        engine.shutdown()
        return str(caught.value)

    for messages in procs(2, body, wire="tcp"):
        assert mentions(messages, "rank 0", "KeyboardInterrupt")


class Handled(BaseException):
    pass


class Places:
    """A tracer for ``sys.settrace`` that raises where Python runs signal handlers: after calls, at
    the beginning of functions, and at the beginning of loop passes.
    """

    def __init__(self, number: int) -> None:
        self.left, self.at = number, ""

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        caller = frame
        while caller.f_code.co_filename == threading.__file__:
            caller = caller.f_back
        if caller.f_code.co_filename not in OWN:  # the wire is a double
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        names = {each.offset: each.opname for each in dis.get_instructions(frame.f_code)}
        last = -1

        def within(frame: Any, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "opcode":
                place = last < 0 or frame.f_lasti < last or names.get(last, "").startswith("CALL")
                last = frame.f_lasti
                self.left -= place
                if place and self.left == 0:
                    self.at = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                    sys.settrace(None)
                    raise Handled
            return within

        return within


@pytest.mark.parametrize("times", [0, 4], ids=["new", "repeated"])
@pytest.mark.parametrize("way", ["run", "submit"])
def test_an_exception_of_a_handler_leaves_no_lock_held(way: str, times: int) -> None:
    def body(transport: Any, places: Places, asked: threading.Event) -> str:
        engine = Engine(transport, Settings())
        flat = np.ones(4, np.float32)
        entry = Entry(
            Request("a", Kind.ALLREDUCE, DType.FLOAT32, (4,)), Buffer(flat, flat, DType.FLOAT32)
        )
        try:
            for _ in range(times):
                summed(engine, "a", 1)
            if engine.rank:
                engine.submit([entry])
                asked.set()
            else:
                assert asked.wait(30)
                through = threading.Event()  # until then the background leaves all to this thread
                engine._gather = lambda: through.wait(60)  # type: ignore
                try:
                    sys.settrace(places)
                    engine.run([entry]) if way == "run" else engine.submit([entry]).wait()
                except Handled:
                    pass
                finally:
                    sys.settrace(None)
                    through.set()
            assert summed(engine, "b", 1) == 2
            assert not engine._outbox.names or engine.rank
        except HorovodInternalError as error:
            return str(error)
        finally:
            asked.set()
            engine.shutdown()
        return ""

    for number in range(1, 1000):
        places, asked = Places(number), threading.Event()
        try:
            messages = ranks(2, lambda transport: body(transport, places, asked), deadline=20)  # noqa: B023
        except AssertionError as error:
            raise AssertionError(f"raised in {places.at}") from error
        if not places.at:
            assert number > 30
            return
        assert messages == ["", ""] or all(
            mentions(each, "rank 0", "collective") for each in messages
        ), places.at


def test_a_nearly_done_handle_is_done_when_interrupted() -> None:
    class Interrupted(handle.Handle):
        def _complete(self) -> None:
            if self._error is None:
                raise KeyboardInterrupt
            super()._complete()

    messages: list[bool] = []
    one = Interrupted(1, lambda _: None)
    one.when_done(lambda: messages.append(True))
    with pytest.raises(KeyboardInterrupt):
        one.finish(0, None)
    one.fail(HorovodInternalError("rank 0 was interrupted"))
    assert one.done()
    assert messages == [True]


def test_a_handler_that_waits_for_a_collective_gets_an_error() -> None:
    messages: list[str] = []

    def body(transport: Any) -> float:
        engine = Engine(transport, Settings())
        for _ in range(4):
            summed(engine, "a", 1)
        if engine.rank == 0:

            def saves(number: int, frame: Any) -> None:
                with pytest.raises(RequestError) as caught:
                    summed(engine, "state", 1)
                messages.append(str(caught.value))

            board: Any = engine.transport.board
            wait = board.wait

            def handled(*args: Any, **kwargs: Any) -> None:
                if not messages:
                    saves(signal.SIGUSR1, None)
                wait(*args, **kwargs)

            board.wait = handled
            summed(engine, "a", 1)
            board.wait = wait
        else:
            until(lambda: bool(messages), "a handler")
            summed(engine, "a", 1)
            summed(engine, "state", 1)
        found = summed(engine, "b", 1)
        engine.shutdown()
        return found

    assert ranks(2, body) == [2, 2]
    assert mentions(messages[0], "signal", "collective")
