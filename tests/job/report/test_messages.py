from __future__ import annotations

import pytest

from farandole.job.report.messages import LONGEST, Message


def test_a_text_is_cut() -> None:
    assert Message.parsed("log", 1, b"a\xff" * LONGEST) == Message(1, "a\ufffd" * (LONGEST // 2))


def test_only_numbers_are_progress() -> None:
    data = (
        b'{"epoch": 2, "rate": 17.5, "step": Infinity, "a": NaN, "b": "x", "c": [1], "d": 1e400,'
        b' "e": null}'
    )
    assert Message.parsed("progress", 0, data).progress == {"epoch": 2, "rate": 17.5}


@pytest.mark.parametrize(
    ("kind", "data"), [("progress", b"{"), ("progress", b"[]"), ("progress", b"\xff"), ("x", b"")]
)
def test_what_is_none(kind: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        Message.parsed(kind, 0, data)
