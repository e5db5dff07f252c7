"""The checks of an optimizer's steps, from the facts of a few steps."""

from __future__ import annotations

import pytest

from farandole.checks.catalogue import (
    BYPASSED_STEP,
    DISCARDED_RESULTS,
    NO_GRADIENTS,
    NONFINITE_STEP,
    UNWRAPPED_OPTIMIZER,
    UNWRAPPED_SECOND_OPTIMIZER,
)
from farandole.checks.finding import Finding
from farandole.checks.optimizer import (
    BYPASSED_STEPS,
    IDLE_STEPS,
    BypassedStepCheck,
    NoGradientsCheck,
    NonFiniteCheck,
)
from farandole.checks.unwrapped_optimizer import discarded_results, unwrapped, unwrapped_second
from tests.kits.messages import mentions


@pytest.mark.parametrize(
    ("gradient", "before", "after", "found"),
    [
        (1, True, False, True),
        (1, True, True, False),  # the program skipped the step, or clipped
        (1, False, False, False),  # an earlier step did it
        (None, True, False, False),  # another rank's gradient
    ],
)
def test_a_step_that_makes_weights_nan(
    gradient: int | None, before: bool, after: bool, found: bool
) -> None:
    finite = {1: before}
    check = NonFiniteCheck(lambda index: finite[index], lambda index: f"weight {index}")
    check.before_step(gradient)
    finite[1] = after
    finding = check.after_step(7)
    assert (finding is not None) == found
    if finding is not None:
        assert (finding.code, finding.where) == (NONFINITE_STEP.code, "weight 1")
        assert mentions(finding.text, "'weight 1'", "step 7")
    assert check.after_step(8) is None  # once


def steps(check: NoGradientsCheck, trainable: int, count: int) -> list[Finding]:
    found = [check.after_step("SGD", trainable) for _ in range(count)]
    return [finding for finding in found if finding is not None]


def test_an_optimizer_without_gradients() -> None:
    check = NoGradientsCheck()
    assert steps(check, 4, IDLE_STEPS - 1) == []
    (finding,) = steps(check, 4, 50)
    assert finding.code == NO_GRADIENTS.code
    assert mentions(finding.text, "SGD", f"{IDLE_STEPS} steps", "4 parameters")


def test_an_optimizer_with_gradients_or_without_parameters() -> None:
    check = NoGradientsCheck()
    steps(check, 4, IDLE_STEPS - 1)
    check.on_gradient()
    assert steps(check, 4, 50) == []
    assert steps(NoGradientsCheck(), 0, 50) == []


def test_steps_past_the_one_that_exchanges() -> None:
    check = BypassedStepCheck("op=Adasum")
    found = [check.on_other_step("SAM", "SGD") for _ in range(BYPASSED_STEPS + 5)]
    (finding,) = [each for each in found if each is not None]
    assert found.index(finding) == BYPASSED_STEPS - 1
    assert finding.code == BYPASSED_STEP.code
    assert mentions(finding.text, "SGD", "10", "SAM")
    assert mentions(finding.text, "op=Adasum", "step()")


@pytest.mark.parametrize(
    ("digests", "outcome"),
    [
        (None, "2 separate models"),
        ([1, 1], "the same model on the same data"),
        ([1, 2], "2 unrelated models"),
    ],
)
def test_training_without_an_exchange(digests: list[int] | None, outcome: str) -> None:
    finding = unwrapped("every rank took 100 steps", 2, digests, "wrap it")
    assert (finding.code, finding.cure) == (UNWRAPPED_OPTIMIZER.code, "wrap it")
    assert mentions(finding.text, "every rank took 100 steps", "2 ranks")
    assert outcome in finding.text
    assert finding.text.endswith("wrap it")


def test_ranks_that_hold_the_same_made_no_mistake() -> None:
    assert unwrapped_second("ranks stepped", [3, 3], "wrap it") is None
    assert discarded_results("ranks stepped", [3, 3], 1) is None


def test_a_second_optimizer_and_dropped_means() -> None:
    second = unwrapped_second("ranks stepped", [3, 4], "wrap it")
    dropped = discarded_results("ranks stepped", [3, 4], 2)
    assert second is not None
    assert dropped is not None
    assert (second.code, second.cure) == (UNWRAPPED_SECOND_OPTIMIZER.code, "wrap it")
    assert dropped.code == DISCARDED_RESULTS.code
    assert mentions(dropped.text, "hvd.allreduce", "2 gradients", "p.grad")
