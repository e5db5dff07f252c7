"""The store that rank 0 serves in a job without a driver."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from farandole.errors import AuthenticationError, RendezvousError, SettingsError
from farandole.job.bootstrap import peer_hosted_store, store_host
from farandole.job.bootstrap.siblings import NO_SIBLINGS, Siblings
from farandole.job.bootstrap.store_host import StoreHost
from farandole.job.config import Placement, Settings
from farandole.job.report import keys
from farandole.job.report.outcome import Outcome
from farandole.net import interfaces
from farandole.net.handshake import new_secret
from farandole.net.store import StoreClient, reach
from farandole.net.store.exchange import redeem
from tests.kits.messages import mentioning


class Unreached:
    """A cluster in which rank 0's text reaches no rank."""

    name = "unreached"
    ends_together = False
    absence_hint = ""

    def broadcast(
        self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
    ) -> str:
        return text()

    def siblings(self, placement: Placement, env: object) -> Siblings:
        return NO_SIBLINGS

    def on_assigned(self) -> None:
        pass


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(RendezvousError, match=mentioning("ranks 1, 2", "init()", "0.2")) as caught:
        peer_hosted_store.join(
            Unreached(), Placement(size=3, local_size=3), Settings(start_timeout=0.2)
        )  # type: ignore[arg-type]
    assert caught.value.missing == (1, 2)
    assert peer_hosted_store._membership is None


def test_with_tls_the_cluster_carries_a_token_only() -> None:
    host = StoreHost(Placement(size=2, local_size=2), Settings(tls=True))
    address, token = host.contact().split(",")
    try:
        assert host._secret not in (address, token)
        client = redeem(reach([address], token, 10.0), 1)
        assert (client.address, client.secret) == (host.server.address, host._secret)
        client.close()
        with pytest.raises(AuthenticationError, match=mentioning("token", "ssh")):
            redeem(reach([address], token, 10.0), 1)
    finally:
        host.hang_up()


@pytest.mark.parametrize("tls", [True, False])
def test_ranks_that_disagree_on_encryption_are_refused(tls: bool) -> None:
    class Other(Unreached):
        def broadcast(
            self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
        ) -> str:
            return f"127.0.0.1:1,{new_secret(tls=not tls)}"

    with pytest.raises(
        SettingsError, match=mentioning(f"FARANDOLE_TLS={int(tls)}", "rank 1", "rank 0")
    ):
        peer_hosted_store.join(Other(), Placement(rank=1, size=2), Settings(tls=tls))  # type: ignore[arg-type]


def test_ranks_with_different_sizes_are_refused() -> None:
    """For example by hand: WORLD_SIZE=2 for rank 0, and 3 for rank 1."""
    host = StoreHost(Placement(size=2, local_size=2), Settings(start_timeout=5.0))

    class Other(Unreached):
        def broadcast(
            self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings
        ) -> str:
            host.server.set("node/0", b'["h", 0, 2]')
            threading.Thread(target=host.assign).start()
            return host.contact()

    try:
        with pytest.raises(SettingsError, match=mentioning("rank 1", "3", "rank 0", "2")):
            peer_hosted_store.join(Other(), Placement(rank=1, size=3), Settings(start_timeout=5.0))  # type: ignore[arg-type]
    finally:
        host.hang_up()
        peer_hosted_store._membership = None


@pytest.mark.parametrize(
    ("size", "others", "says"),
    [
        (3, {1: 3, 2: 4}, "rank 2 was started as one of 4 ranks, but rank 0 as one of 3: "),
        (4, {1: 3, 2: 3}, "rank 1 was started as one of 3 ranks, but rank 0 as one of 4: "),
        (2, {1: 3, 2: 3}, "rank 1 was started as one of 3 ranks, but rank 0 as one of 2: "),
    ],
)
def test_all_hear_of_different_numbers_of_ranks(
    size: int, others: dict[int, int], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also ranks that agree with rank 0, ranks beyond its number, and rank 0 itself; the remaining
    ranks have no time to join.
    """
    monkeypatch.setattr(store_host, "SLACK", 1.0)
    host = StoreHost(Placement(size=size, local_size=size), Settings(start_timeout=30.0))
    clients = {rank: StoreClient(host.server.address, host._secret) for rank in (0, *others)}
    try:
        for rank, client in clients.items():
            client.announce(f"rank/{rank}")
            client.set(f"node/{rank}", json.dumps(["h", rank, {0: size, **others}[rank]]).encode())
        dealing = threading.Thread(target=host.assign)
        dealing.start()
        for rank, client in clients.items():
            facts = json.loads(client.get(f"placement/{rank}", 10.0))
            assert facts["wrong_size"].startswith(says)
            client.close()
        dealing.join()
    finally:
        host.hang_up()


def test_an_address_that_does_not_answer_is_passed_over() -> None:
    host = StoreHost(Placement(size=2, local_size=2), Settings())
    *_, address, secret = host.contact().split(",")
    try:
        client = reach(["127.0.0.1:1", address], secret, 10.0)
        assert client.address == address
        client.close()
        with pytest.raises(RendezvousError, match=r"127\.0\.0\.1:1"):
            reach(["127.0.0.1:1"], secret, 10.0)
    finally:
        host.server.close()


def test_the_interfaces_that_are_set_are_offered() -> None:
    host = StoreHost(Placement(size=2, local_size=1), Settings(network_interfaces="lo"))
    try:
        *addresses, _ = host.contact().split(",")
        hosts = [interfaces.split(address)[0] for address in addresses]
        assert hosts in (["127.0.0.1"], ["127.0.0.1", "::1"])
    finally:
        host.server.close()


class TestTheEnd:
    @pytest.fixture
    def host(self) -> Iterator[StoreHost]:
        host = StoreHost(Placement(size=4, local_size=4), Settings(start_timeout=5.0))
        yield host
        host.server.close()

    @pytest.fixture
    def clients(self, host: StoreHost) -> Iterator[list[StoreClient]]:
        """Return the clients of ranks 1 to 3, which have joined."""
        address, secret = host.contact().split(",")
        clients = [StoreClient(address, secret) for _ in range(4)]
        for rank, client in enumerate(clients):
            client.announce(f"rank/{rank}")
            client.set(f"node/{rank}", f'["h{rank % 2}", {rank // 2}, 4]'.encode())
        host.assign()
        yield clients
        for client in clients:
            client.close()

    def test_rank_0_waits_for_all_and_names_those_that_failed(
        self, host: StoreHost, clients: list[StoreClient], capsys: pytest.CaptureFixture[str]
    ) -> None:
        outcomes = {
            1: Outcome(status="error", kind="ValueError", message="no more data"),
            2: Outcome(status="victim", kind="PeerLostError", message="rank 1 left"),
        }
        ended = threading.Thread(target=host.close, args=(None,))
        ended.start()
        for rank, outcome in outcomes.items():
            clients[rank].set(keys.outcome(rank), outcome.to_bytes())
            clients[rank].close()
        assert ended.is_alive(), "rank 3 goes on"
        clients[3].close()  # killed: it says nothing
        ended.join(60)
        assert not ended.is_alive()
        assert capsys.readouterr().err.splitlines() == [
            "farandole: rank 1 on h1 failed: ValueError: no more data",
            "farandole: rank 3 on h1 ended without a report: it was killed, or it called os._exit",
        ]

    def test_a_rank_has_left_after_its_goodbye(
        self, host: StoreHost, clients: list[StoreClient]
    ) -> None:
        """A forked process, such as a data loader's, may hold its connection open."""
        for rank in (1, 2, 3):
            clients[rank].set(keys.outcome(rank), Outcome(status="ok").to_bytes())
            clients[rank].set(f"left/{rank}", b"")
        host.close(None)
        assert host.remaining() == set()

    def test_after_a_failure_of_its_own_it_waits_for_a_while_only(
        self, host: StoreHost, clients: list[StoreClient], capsys: pytest.CaptureFixture[str]
    ) -> None:
        host.close(0.05)
        assert host.remaining() == {1, 2, 3}
        assert capsys.readouterr().err == "", "they have not ended"
