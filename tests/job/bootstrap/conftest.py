from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kits.hosts import Hosts, hosts


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Hosts]:
    """Hosts with sshd, on which no process may be left."""
    with hosts(2) as made:
        yield made
        assert made.idle()
