from __future__ import annotations

import pytest

from farandole.job.report.messages import LONGEST, RankMessage


def test_a_text_is_cut() -> None:
    assert RankMessage.parsed("log", 1, b"a\xff" * LONGEST) == RankMessage(
        1, "a\ufffd" * (LONGEST // 2)
    )


def test_only_numbers_are_progress() -> None:
    data = (
        b'{"epoch": 2, "rate": 17.5, "step": Infinity, "a": NaN, "b": "x", "c": [1], "d": 1e400,'
        b' "e": null}'
    )
    assert RankMessage.parsed("progress", 0, data).progress == {"epoch": 2, "rate": 17.5}


@pytest.mark.parametrize(
    ("kind", "data"), [("progress", b"{"), ("progress", b"[]"), ("progress", b"\xff"), ("x", b"")]
)
def test_a_malformed_message_is_an_error(kind: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        RankMessage.parsed(kind, 0, data)
