from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.collectives import over
from farandole.handshake import new_secret
from farandole.transports import tcp
from tests.kits.process import ProcessKit
from tests.kits.transport import TransportKit, fresh_scope
from tests.transports.double_store import ThreadStore


class TestTcp(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        secret, scope, store = new_secret(), fresh_scope(), ThreadStore()
        return lambda rank: over(tcp.connect(rank, size, secret, scope, store, 10.0))


class TestTcpProcesses(ProcessKit):
    wire = "tcp"
