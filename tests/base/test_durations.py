from __future__ import annotations

import pytest

from farandole.base.durations import readable


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (25.4, "25 s"), (59.7, "1:00 min"), (125, "2:05 min"), (11_530, "3:12 h")],
)
def test_the_unit_fits_the_duration(seconds: float, text: str) -> None:
    assert readable(seconds) == text
