"""Digests of DataFrames whose plan only a server has (Spark Connect). Sessions with a JVM are
tested in tests/spark/test_local.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from farandole.data import plans
from farandole.data.written_frames import WriteOptions, WrittenFrame


class Frame:
    """Like a DataFrame of Spark Connect: the server reads the view on each request, and a DataFrame
    caches the answer.
    """

    def __init__(self, view: SimpleNamespace) -> None:
        self._view = view
        self._hash: int | None = None

    def select(self, _: str) -> Frame:
        return Frame(self._view)

    def inputFiles(self) -> list[str]:
        return []

    def semanticHash(self) -> int:
        if self._hash is None:
            self._hash = self._view.plan
        return self._hash


def test_a_dataframe_of_connect_is_another_when_its_view_is() -> None:
    view = SimpleNamespace(plan=5)
    frame: Any = Frame(view)
    options = WriteOptions("/tmp", 1, None)
    written = WrittenFrame(frame, ["id"], options, "/tmp/nowhere")
    assert written.holds(frame, ["id"], options)
    view.plan = 7
    assert not written.holds(frame, ["id"], options)
    view.plan = 5
    assert written.holds(frame, ["id"], options)


def test_a_plan_of_which_nothing_is_known_is_like_no_other() -> None:
    assert plans.on_server(None) != plans.on_server(None)
    assert not plans.of_files(None)
