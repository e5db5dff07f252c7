"""The name of an exchange says which optimizer asks for it."""

from __future__ import annotations

import pytest

from farandole.base.exchange_names import (
    ADASUM,
    BUCKETS,
    KINDS,
    LISTS,
    Origin,
    exchange_name,
    is_of_optimizer,
    origin_of,
)


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_read_as_they_are_made(kind: str) -> None:
    name = exchange_name(kind, 12)
    for part in (name, f"{name}.filled"):
        assert origin_of(part) == Origin(kind, 12)
        assert is_of_optimizer(part)


@pytest.mark.parametrize(
    ("name", "origin", "of_optimizer"),
    [
        (exchange_name(BUCKETS, "3.of.0.1"), Origin(BUCKETS, 3), True),  # of an earlier session
        (f"{ADASUM}.2.check.due", Origin(ADASUM, 2), True),
        (f"{LISTS}.weights.3", None, True),
        ("loss", None, False),
        ("my.optimizer.3", None, False),
        ("optimizers.3", None, False),
        ("optimizer.3rd", None, True),
    ],
)
def test_other_names(name: str, origin: Origin | None, of_optimizer: bool) -> None:
    assert origin_of(name) == origin
    assert is_of_optimizer(name) == of_optimizer
