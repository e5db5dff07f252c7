from __future__ import annotations

import warnings
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.job.report.pickling import pack


async def asynchronous() -> int:
    return 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            asynchronous,
            "the result of 'f': it is a coroutine",
        ),
        (
            lambda: (n for n in range(3)),
            "the result of 'f': it is a generator",
        ),
        (
            lambda: {"rows": [(n for n in range(3))]},
            "the result of 'f': its ['rows'][0] is a generator",
        ),
    ],
    ids=["coroutine", "generator", "inside"],
)
def test_an_unrun_result_names_the_call_that_runs_it(value: Any, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SettingsError) as raised:
            pack(value(), "the result of 'f'")
    assert str(raised.value).startswith(text)
