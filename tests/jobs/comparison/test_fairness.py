"""Reasons against a comparison, as functions of the measures of two or three runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farandole.jobs.comparison.fairness import Reason, Unfairness, fairness, fraction
from farandole.jobs.comparison.measures import RunMeasures
from tests.kits.messages import mentions

SINGLE = RunMeasures(
    run_id="chest_1",
    name="single",
    state="completed",
    target="local",
    ranks=1,
    nodes=1,
    attempts=1,
    seconds=450.0,
    samples=18_000.0,
    samples_per_model=18_000.0,
    steps=600.0,
    epochs=20.0,
    batch=30.0,
    learning_rate=0.01,
    data="aa",
    validation="bb",
    validation_rows=300,
    hosts=("one",),
    cores=4,
    other_load=0.2,
)
# Twenty epochs divided over four ranks that read all data: each sees a share of the samples.
HONEST = replace(
    SINGLE,
    run_id="chest_2",
    name="distributed",
    ranks=4,
    nodes=4,
    seconds=130.0,
    steps=150.0,
    exchanges=True,
    same_data=False,
    learning_rate=0.04,
    exchange_bytes=1e8,
)
MISTAKEN = replace(
    HONEST,
    name="seven to five",
    seconds=300.0,
    samples_per_model=4_500.0,
    epochs=5.0,
    learning_rate=0.01,
    exchanges=False,
    same_data=True,
    findings=("FAR012", "FAR027"),
)


def codes(*runs: RunMeasures) -> list[Reason]:
    return [each.code for each in fairness(runs)]


def only(code: Reason, *runs: RunMeasures) -> Unfairness:
    (found,) = (each for each in fairness(runs) if each.code is code)
    return found


def test_an_honest_pair_has_no_findings() -> None:
    assert codes(SINGLE, HONEST) == []
    assert codes(HONEST, SINGLE) == []


def test_quarters_of_the_epochs_without_exchange() -> None:
    assert codes(SINGLE, MISTAKEN) == [Reason.NO_EXCHANGE, Reason.SAME_DATA, Reason.SAMPLES]
    found = only(Reason.NO_EXCHANGE, SINGLE, MISTAKEN)
    assert found.runs == ("chest_2",)
    assert mentions(found.seen, "4 ranks", "FAR012", "a quarter", "epochs", "single", "5", "20")
    assert mentions(found.seen, "same data")
    assert mentions(found.cure, "hvd.DistributedOptimizer")
    assert mentions(only(Reason.SAMPLES, SINGLE, MISTAKEN).seen, "4,500", "a quarter of 18,000")
    assert mentions(only(Reason.SAME_DATA, SINGLE, MISTAKEN).why, "4 times")


def test_models_of_their_own_are_named() -> None:
    other = replace(MISTAKEN, same_data=False, epochs=20.0, samples_per_model=18_000.0)
    assert codes(SINGLE, other) == [Reason.NO_EXCHANGE]
    assert "of its own" in only(Reason.NO_EXCHANGE, SINGLE, other).seen


def test_epochs_count_where_samples_are_unknown() -> None:
    unknown = {"samples": None, "samples_per_model": None}
    single, other = replace(SINGLE, **unknown), replace(HONEST, epochs=5.0, **unknown)  # type: ignore[arg-type]
    assert mentions(only(Reason.EPOCHS, single, other).seen, "5", "20")
    assert codes(single, replace(HONEST, **unknown)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "batch", "expected"),
    [
        (0.04, 30.0, []),
        (0.02, 30.0, []),  # the square root of 4
        (0.01, 30.0, [Reason.BATCH]),
        (0.01, 7.5, []),  # the batch of all ranks is the same
        (0.04, 7.5, [Reason.LEARNING_RATE]),
    ],
)
def test_batch_and_rate_belong_together(rate: float, batch: float, expected: list[Reason]) -> None:
    assert codes(SINGLE, replace(HONEST, learning_rate=rate, batch=batch)) == expected


def test_other_validation_data_is_found() -> None:
    other = replace(HONEST, validation="cc", validation_rows=75)
    assert codes(SINGLE, other) == [Reason.VALIDATION]
    assert mentions(only(Reason.VALIDATION, SINGLE, other).seen, "75", "300")
    assert codes(SINGLE, replace(other, validation="")) == [Reason.VALIDATION]
    assert codes(SINGLE, replace(HONEST, validation="")) == []  # parts of the same data


def test_other_training_data_of_single_processes() -> None:
    assert codes(SINGLE, replace(SINGLE, data="cc")) == [Reason.DATA]
    assert codes(SINGLE, replace(HONEST, data="cc")) == []  # its part of the data


def test_machines_cores_and_load() -> None:
    assert codes(SINGLE, replace(HONEST, hosts=("two", "three"))) == [Reason.MACHINES]
    crowded = only(Reason.CORES, SINGLE, replace(HONEST, cores=2))
    assert mentions(crowded.seen, "4 ranks", "2 cores", "one")
    busy = only(Reason.LOAD, SINGLE, replace(HONEST, other_load=3.0))
    assert mentions(busy.seen, "3.0", "0.2")


def test_unfinished_and_repeated_runs() -> None:
    assert codes(SINGLE, replace(HONEST, state="running")) == [Reason.END]
    assert mentions(only(Reason.ATTEMPTS, SINGLE, replace(HONEST, attempts=3)).seen, "3 attempts")


def test_settings_with_different_numbers_of_seeds() -> None:
    single = replace(SINGLE, seed="0")
    again = [replace(HONEST, run_id=f"chest_{seed}", seed=str(seed)) for seed in range(3)]
    assert codes(single, *again) == [Reason.SEEDS]
    assert codes(single, again[0]) == []


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(5, 20, "a quarter"), (1, 2, "half"), (38, 100, "38 %"), (40, 10, "4 times")],
)
def test_fractions_in_words(part: float, whole: float, words: str) -> None:
    assert fraction(part, whole) == words


def test_findings_are_plain_data() -> None:
    found = only(Reason.SAMPLES, SINGLE, MISTAKEN).to_json()
    assert found["code"] == "samples"
    assert sorted(found) == ["code", "cure", "runs", "seen", "why"]
