from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.handshake import new_secret
from farandole.transports import shm
from tests.kits.process import ProcessKit
from tests.kits.transport import TransportKit, fresh_scope


class TestShm(TransportKit):
    def joiner(self, size: int) -> Callable[[int], Any]:
        secret, scope = new_secret(), fresh_scope()
        return lambda rank: shm.connect(rank, size, secret, scope, 10.0)


class TestShmProcesses(ProcessKit):
    wire = "shm"
