"""Waiting threads of Farandole are registered; for others, the kernel and the innermost function
are queried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from farandole.core.groups import thread_waits
from farandole.core.groups.calls import Call, CallQueue, runs_call
from farandole.core.groups.thread_waits import LONG, signs
from tests.kits.worlds import until


@contextmanager
def running(work: Callable[[], object], end: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        end()
        thread.join(60)


def native(thread: threading.Thread) -> int:
    assert thread.native_id is not None
    return thread.native_id


def forbidden(thread: int) -> None:
    raise AssertionError("the kernel was asked")


def test_a_wait_for_a_call_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_waits, "current_sleep", forbidden)
    call = Call(lambda: None)
    with running(call.sleep, call.finish) as thread:
        until(lambda: thread.ident in thread_waits.waiting_for, "the wait")
        assert signs(native(thread), 60.0, runs_call) == {(thread.ident, id(call)): 0.0}
    assert thread.ident not in thread_waits.waiting_for


def test_a_thread_in_a_call_may_sleep_for_long() -> None:
    calls, entered, over = CallQueue("calls"), threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        over.wait(60)

    with running(lambda: calls.run(Call(work)), over.set) as thread:
        assert entered.wait(60)
        until(lambda: signs(native(thread), 60.0, runs_call) != {}, "its sleep")
        assert [*signs(native(thread), 60.0, runs_call).values()] == [60.0]
    assert not runs_call(thread.ident or 0)
    calls.close()


@pytest.mark.parametrize("queued", [False, True])
def test_a_failed_call_leaves_no_mark(queued: bool) -> None:
    calls, failed, seen = (
        CallQueue("calls"),
        Call(lambda: seen.append(here()) or 1 / 0),
        list[bool](),
    )

    def here() -> bool:
        me = threading.get_ident()
        return runs_call(me) or me in thread_waits.in_calls

    if queued:
        calls._waiting.append(failed)
        calls.run_all()
    else:
        calls.run(failed)
    assert isinstance(failed.error, ZeroDivisionError)
    assert seen == [True]
    assert not here()
    calls.close()


def test_waits_of_the_program_are_guessed() -> None:
    """A function that waits, one that sleeps, and one that polls a future."""
    over = threading.Event()

    def asks(future: threading.Event) -> None:
        future.done = future.is_set  # type: ignore[attr-defined]
        while not future.done():  # type: ignore[attr-defined]
            pass

    with running(lambda: over.wait(60), over.set) as thread:
        until(lambda: signs(native(thread), 60.0, runs_call) != {}, "its sleep")
        assert [*signs(native(thread), 60.0, runs_call).values()] == [0.0]
    over.clear()
    with running(lambda: asks(over), over.set) as thread:
        until(lambda: LONG in signs(native(thread), 60.0, runs_call).values(), "its question")
    ended = native(thread)
    until(lambda: signs(ended, 60.0, runs_call) == {(ended, ""): 0.0}, "the end of its task")
