"""A membership whose ranks cannot connect is left, and the next one is joined."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.errors import PeerLostError, RendezvousError
from farandole.job.config import Connection, Placement, Settings
from farandole.job.context import lifecycle
from tests.kits.heard import listening
from tests.kits.messages import mentions


def test_a_rank_that_cannot_reach_another_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    places = iter(Placement(rank=0, size=2, generation=number) for number in (1, 2, 3))
    results = iter([RendezvousError("no answer from h2"), PeerLostError("lost"), "wire"])

    def connect(*_: Any) -> Any:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(lifecycle.session, "open_store", lambda *_: None)
    monkeypatch.setattr(lifecycle.membership, "await_placement", lambda *_: next(places))
    monkeypatch.setattr(lifecycle.membership, "find_store", lambda *_: None)
    monkeypatch.setattr(lifecycle, "_connect", connect)
    with listening() as texts:
        place, transport = lifecycle._join(Placement(), Connection(), Settings())
    assert (place.generation, transport) == (3, "wire")
    (text,) = texts  # the driver reports the lost rank
    assert mentions(text, "membership 1", "no answer from h2")
