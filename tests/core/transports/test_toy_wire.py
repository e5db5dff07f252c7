"""A wire is one file and a line among a distribution's entry points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.base.contracts import End
from farandole.core.collectives import over
from farandole.job.plugins import registry
from tests.kits.link import LinkKit
from tests.kits.transport import BoardKit, MoveKit, ReduceKit, fresh_scope

LINE = "toy = tests.core.transports.toy_wire:wire\n"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that has the wire."""
    info = tmp_path / "toy-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[farandole.wires]\n{LINE}")
    monkeypatch.syspath_prepend(str(tmp_path))


def toy_wire(size: int) -> Callable[[int], Any]:
    connect, scope = registry.load("wire", "toy"), fresh_scope()
    return lambda rank: connect(End(rank, size, "", scope, 60.0, None, "127.0.0.1"))


class TestToyLink(LinkKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        return toy_wire(size)


class TestToyTransport(ReduceKit, MoveKit, BoardKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        connect = toy_wire(size)
        return lambda rank: over(connect(rank))
