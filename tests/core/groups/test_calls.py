"""Calls run one after the other."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from farandole.core.groups.calls import Call, CallQueue
from farandole.errors import RequestError
from tests.kits.messages import mentions


def test_the_last_step_of_a_call_runs_before_it_is_done() -> None:
    seen: list[bool] = []
    fine = Call(lambda: None, lambda: seen.append(fine.done))
    fine.when_done(lambda: seen.append(fine.done))
    fine.finish()
    assert seen == [False, True]
    broken = Call(lambda: None, lambda: seen.extend([1 / 0 > 0]))
    broken.finish()
    assert broken.done
    assert isinstance(broken.error, ZeroDivisionError)
    failed = Call(lambda: None, lambda: seen.append(True))
    failed.error = broken.error
    failed.finish()
    assert len(seen) == 2


def test_a_call_of_another_thread_does_not_block_the_next() -> None:
    calls = CallQueue("calls")
    order: list[int] = []
    first, second = Call(lambda: order.append(1)), Call(lambda: order.append(2))
    calls._waiting.append(first)  # as ``run`` does, whose thread sleeps
    calls.start(second)
    assert second.sleep(30)
    assert order == [1, 2]
    calls.close()


def test_a_call_waiting_on_its_own_thread_is_an_error() -> None:
    """A signal handler that runs during a call may do this."""
    calls = CallQueue("calls")
    first, behind = Call(lambda: calls.run(Call(lambda: None))), Call(lambda: None)
    calls.run(first)
    assert isinstance(first.error, RequestError)
    assert mentions(str(first.error), "signal", "collective")
    other = Call(lambda: calls.wait(behind))
    calls._waiting.extend([other, behind])
    calls.run_all()
    assert isinstance(other.error, RequestError)
    assert behind.done
    calls.run(last := Call(lambda: None))
    assert last.done
    assert last.error is None
    calls.close()


def test_held_calls_run_on_the_thread_of_their_holder() -> None:
    calls = CallQueue("calls")
    threads: list[str] = []
    held = [Call(lambda: threads.append(threading.current_thread().name)) for _ in range(3)]
    calls._holding = True  # no other thread takes them
    calls._threads = [threading.current_thread()]
    for call in held:
        calls.start(call, held_by=threading.get_native_id())
    assert not any(call.done for call in held)
    calls.run_all()
    assert threads == [threading.current_thread().name] * 3
    calls.close()


def test_a_late_thread_leaves_the_next_calls_to_their_holder() -> None:
    calls = CallQueue("calls")
    before, held = Call(lambda: None), Call(lambda: None)
    with calls._running:  # as by the thread of the previous call
        calls.start(before)
        while calls._news._value:  # type: ignore[attr-defined]
            time.sleep(0.001)
        calls._waiting.remove(before)
        before.finish()
        calls.start(held, held_by=threading.get_native_id())
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        assert not held.done, "this thread works"
    calls.run_all()
    assert held.done
    calls.close()


def test_held_calls_run_even_if_their_holder_waits() -> None:
    calls, me = CallQueue("calls"), threading.get_native_id()
    order: list[int] = []
    first, second, third = (Call(lambda number=number: order.append(number)) for number in range(3))
    calls.start(first, held_by=me)
    assert first.sleep(30)
    calls.start(second, held_by=me)
    calls.start(third)  # which no thread holds, nor earlier calls
    assert third.sleep(30)
    assert order == [0, 1, 2]
    calls.close()


def test_held_calls_wait_for_a_working_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, over = CallQueue("calls"), threading.Event()
    holder = threading.Thread(target=over.wait)
    holder.start()
    held_by = holder.native_id or 0
    # it sleeps now and then, but wakes up
    naps = iter([None, (held_by, "1"), (held_by, "2"), None, (held_by, "3")])
    looks: list[bool] = []
    call = Call(lambda: None)

    def nap(thread: int) -> tuple[int, str] | None:
        looks.append(call.done)
        return next(naps, (held_by, "3"))

    monkeypatch.setattr("farandole.core.groups.thread_waits.current_sleep", nap)
    calls.start(call, held_by=held_by)
    assert call.sleep(30)
    over.set()
    holder.join()
    assert len(looks) >= 6
    assert not any(looks)
    calls.close()


def test_a_held_call_runs_when_its_holder_polls() -> None:
    calls = CallQueue("calls")
    call = Call(lambda: None)
    calls.start(call, held_by=threading.get_native_id())
    while not call.done:  # it works: no thread would run the calls that it holds
        calls.hurry()
    calls.close()


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_held_calls_run_when_their_holder_asks_a_future_for_long(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farandole.core.groups.thread_waits.LONG", 0.05)
    calls, future = CallQueue("calls"), Future[None]()
    calls.start(Call(lambda: future.set_result(None)), held_by=threading.get_native_id())
    end = time.monotonic() + 60
    while not future.done():
        assert time.monotonic() < end
        if seconds:
            time.sleep(seconds)
    calls.close()


@pytest.mark.parametrize("who", ["another thread", "the same thread"])
def test_waiting_for_late_ranks_does_not_wait_for_callbacks(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks would run before the next call on this rank, and after it on late ranks. ``who``
    runs the waiting call.
    """
    calls, callbacks = CallQueue("calls"), CallQueue("callbacks", behind=3600.0)
    order: list[str] = []
    begun, looked = threading.Event(), threading.Event()
    looks: list[bool] = []

    def next_call() -> None:
        if who == "the same thread":
            assert looked.wait(60)  # a wire waits in functions of any name
        order.append("next call")

    def backward() -> None:
        callbacks.start(Call(lambda: order.append("callback")), held_by=threading.get_native_id())
        begun.set()
        calls.run(Call(next_call))
        callbacks.run_all()

    def waits(frame: FrameType | None) -> bool:
        code = CallQueue._run_next.__code__ if who == "another thread" else next_call.__code__
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None

    def nap(thread: int) -> tuple[int, str] | None:
        begun.wait(60)
        if looked.is_set() or not waits(sys._current_frames().get(holder.ident or 0)):
            return None  # awake
        looks.append(True)
        if len(looks) < 4:
            return thread, "1"
        looked.set()
        return None

    for name, value in (("current_sleep", nap), ("LONG", 0.0)):
        monkeypatch.setattr(f"farandole.core.groups.thread_waits.{name}", value)
    holder = threading.Thread(target=backward)
    with calls._running if who == "another thread" else contextlib.nullcontext():  # the call before
        holder.start()
        assert looked.wait(60)
    holder.join(60)
    assert order == ["next call", "callback"]
    for each in (calls, callbacks):
        each.close()


def test_a_callback_may_wait_for_what_it_calls() -> None:
    """PyTorch's hooks for DDP do this, in C++, which runs nothing else meanwhile; also nested."""
    calls = CallQueue("calls")
    order: list[tuple[int, ...]] = []
    waited: list[bool] = []

    def call_and_wait(*name: int) -> None:
        for step in range(2):
            callbacks = threading.Event()
            nested = Call(lambda step=step: order.append((*name, step)))
            if len(name) < 3:
                nested.when_done(lambda step=step: call_and_wait(*name, step))
            nested.when_done(callbacks.set)
            calls.start(nested)
            waited.append(callbacks.wait(60))

    begin, both = threading.Event(), [threading.Event(), threading.Event()]
    for number, callbacks in enumerate(both):
        call = Call(lambda number=number: order.append((number,)) if begin.wait(60) else None)
        call.when_done(lambda number=number: call_and_wait(number))
        call.when_done(callbacks.set)
        calls.start(call)
    begin.set()
    assert all(callbacks.wait(60) for callbacks in both)
    assert waited == [True] * 28
    of_callbacks = [name for name in order if len(name) > 1]
    # one callback after the other: the same on all ranks
    assert of_callbacks == sorted(of_callbacks)
    assert len(order) == 30
    calls.close()


class Preempted(Exception):
    pass


def preempt(number: int, frame: FrameType | None) -> None:
    raise Preempted


@pytest.mark.parametrize(
    ("handler", "raised"), [(signal.default_int_handler, KeyboardInterrupt), (preempt, Preempted)]
)
def test_an_interrupt_reaches_the_thread_that_it_was_meant_for(
    handler: Any, raised: type[BaseException]
) -> None:
    calls = CallQueue("calls")
    calls._threads = [threading.current_thread()]  # no other thread takes them

    def interrupt() -> None:
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            handlers.append(before)

    handlers: list[Any] = []

    heard: list[str] = []
    first, second = (
        Call(lambda: signal.raise_signal(signal.SIGUSR1)),
        Call(lambda: heard.append("ran")),
    )
    first.when_done(lambda: heard.append("callbacks"))
    calls.start(first)
    calls.start(second)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(raised):
            calls.run_all()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(first.error, raised)
    assert heard == ["callbacks"]
    calls.wait(second)
    assert heard == ["callbacks", "ran"]
    calls.close()


def test_systemexit_in_a_call_does_not_end_the_thread() -> None:
    calls = CallQueue("calls")

    def leave() -> None:
        raise SystemExit(3)

    first, second = Call(leave), Call(lambda: None)
    calls.start(first)
    assert first.sleep(30)
    calls.start(second)
    assert second.sleep(30)
    assert isinstance(first.error, SystemExit)
    calls.close()


def test_a_waiting_holder_is_seen_by_a_sleeping_thread() -> None:
    """A thread polls for a while after it has left calls to another thread."""
    calls, me = CallQueue("calls"), threading.get_native_id()
    for pause in (0.0, 0.0, 1.2, 0.0):  # with it, and after it has gone to sleep
        time.sleep(pause)
        call = Call(lambda: None)
        calls.start(call, held_by=me)
        assert call.sleep(30)
    calls.close()
