"""Calls, one after the other."""

from __future__ import annotations

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
