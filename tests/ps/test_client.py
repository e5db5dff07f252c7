"""The rank's end, where a server is stopped."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

from farandole.errors import AuthenticationError, PeerLostError
from farandole.ps import client as client_module
from farandole.ps import server as server_module
from farandole.ps.clocks import Rule
from tests.ps.test_server import group_of, serving


@pytest.mark.parametrize("where", ["answer", "sending", "receiving"])
def test_a_server_without_a_replica_that_is_stopped_is_told_and_is_lost_in_the_end(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it answers, in the middle of arrays that it gets, and of those that it sends."""
    monkeypatch.setattr(client_module, "SILENCE", 0.05)
    monkeypatch.setattr(client_module, "PROOF", 0.1)
    goes_on, told = threading.Event(), list[str]()
    monkeypatch.setattr(client_module.logger, "warning", lambda text, *values: told.append(text % values))

    def stopped(*args: Any, **kwargs: Any) -> Any:
        goes_on.wait(20.0)
        raise AuthenticationError("it was stopped")

    with serving() as ranks:
        servers = ranks.client(0, patience=0.1)
        large = [np.zeros(1 << 21)]
        centre = group_of(servers, 1, Rule(), large)
        centre.push(large, [np.ones(1 << 21)])
        (server,) = ranks.servers[0]
        monkeypatch.setattr(server._newcomers, "admit", stopped)

        receive_into, send = server_module.receive_into, server_module.send

        def receives(*arguments: Any) -> None:
            goes_on.wait(20.0)
            receive_into(*arguments)

        def sends(session: Any, message: Any, arrays: Any = None) -> None:
            send(session, message)
            session.stream.send(b"head")
            goes_on.wait(20.0)

        if where == "sending":
            monkeypatch.setattr(server_module, "receive_into", receives)
        elif where == "receiving":
            monkeypatch.setattr(server_module, "send", sends)
        lock = server.changed if where == "answer" else contextlib.nullcontext()
        with lock, pytest.raises(PeerLostError, match=r"^parameter server 0 on .* was lost \(it did nothing for \d+ s"):
            centre.push(large, [np.ones(1 << 21)])
        goes_on.set()
        servers.close(failed=True)
    assert any("does nothing, and lets in no connection" in text and "--replicas 2" in text for text in told)
