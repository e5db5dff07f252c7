"""Values are found whole and in any order, and all of them on one line."""

from __future__ import annotations

import re

import pytest

from tests.kits.messages import mentioning, mentions

TEXT = "rank 1 has 'x.weight' of shape (3,) and 12 rows in 0.5 s: give --codec=int8"


@pytest.mark.parametrize(
    "values",
    [
        ("rank 1",),
        ("--codec", "rank 1", "'x.weight'"),
        (("12", "rows"), "0.5"),
        ("Rank 1", "(3,)"),
        ("x.weight", "0.5 s"),
    ],
)
def test_values_that_a_message_has(values: tuple[str | tuple[str, ...], ...]) -> None:
    assert re.search(mentioning(*values), TEXT)
    assert mentions(f"before\n{TEXT}\nafter", *values)
    assert mentions(["before", TEXT], *values)


@pytest.mark.parametrize(
    "values", [("rank 2",), ("1", "row"), ("5",), ("weigh",), ("int",), ("rank 1", "--cod")]
)
def test_parts_of_words_and_numbers_are_no_values(values: tuple[str, ...]) -> None:
    assert not re.search(mentioning(*values), TEXT)
    assert not mentions(TEXT, *values)


def test_all_values_are_on_one_line() -> None:
    assert not mentions("rank 1 failed\nof shape (3,)", "rank 1", "(3,)")
    assert re.search(mentioning("rank 1", "(3,)"), "rank 1 failed\nof shape (3,)")


def test_a_pattern_has_a_value() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mentioning()
