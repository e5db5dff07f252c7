"""Calls, one after the other."""

from __future__ import annotations

import threading

from farandole.groups.calls import Call, Calls


def test_what_belongs_to_a_call_happens_before_it_is_done() -> None:
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


def test_a_call_that_was_to_run_elsewhere_does_not_keep_the_one_behind_it() -> None:
    calls = Calls("calls")
    order: list[int] = []
    first, second = Call(lambda: order.append(1)), Call(lambda: order.append(2))
    calls._waiting.append(first)  # as ``run`` does, whose thread sleeps
    calls.start(second)
    assert second.sleep(30)
    assert order == [1, 2]
    calls.close()


def test_held_calls_run_on_the_thread_of_who_runs_them_all() -> None:
    calls = Calls("calls")
    threads: list[str] = []
    held = [Call(lambda: threads.append(threading.current_thread().name)) for _ in range(3)]
    calls._holding = True  # nobody else takes them
    calls._thread = threading.current_thread()
    for call in held:
        calls.start(call, held=True)
    assert not any(call.done for call in held)
    calls.run_all()
    assert threads == [threading.current_thread().name] * 3
    calls.close()


def test_held_calls_run_all_the_same_if_nobody_comes() -> None:
    calls = Calls("calls")
    order: list[int] = []
    first, second, third = (Call(lambda number=number: order.append(number)) for number in range(3))
    calls.start(first, held=True)
    assert first.sleep(30)
    calls.start(second, held=True)
    calls.start(third)  # which nobody holds, nor what is before it
    assert third.sleep(30)
    assert order == [0, 1, 2]
    calls.close()
