"""Messages about ranks that hold different models."""

from __future__ import annotations

import pytest

from farandole.base.differences import first_difference

A = ("a", (2, 3), "float32")
COLUMNS = ("shape", "type")


@pytest.mark.parametrize(
    ("tables", "ranks", "text"),
    [
        ([[A], [A]], (), ""),
        (
            [[A], [A], [("a", (2, 4), "float32")]],
            (),
            "'a' has shape (2, 3) on rank 0 and (2, 4) on rank 2",
        ),
        (
            [[A], [("a", (2, 3), "int8")]],
            (3, 5),
            "'a' has type float32 on rank 3 and int8 on rank 5",
        ),
        ([[A], [("b", (2, 3), "float32")]], (), "number 0 is 'a' on rank 0 and 'b' on rank 1"),
        ([[A, ("b", (1,), "int8")], [A]], (), "rank 0 has 2, rank 1 has 1; only rank 0 has 'b'"),
        (
            [[], [(name,) for name in "abcde"]],
            (),
            "rank 0 has 0, rank 1 has 5; only rank 1 has 'a', 'b', 'c' and 2 more",
        ),
        (
            [[A], [(*A, "GPU")]],
            (),
            "'a' has description ((2, 3), 'float32') on rank 0 and "
            "((2, 3), 'float32', 'GPU') on rank 1",
        ),
    ],
)
def test_the_first_difference(
    tables: list[list[tuple[object, ...]]], ranks: tuple[int, ...], text: str
) -> None:
    assert first_difference(tables, COLUMNS, ranks) == text
