"""The job's store as torch's: what each method does, and a group of torch's that meets in it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from farandole.errors import RendezvousError
from farandole.net.handshake import new_secret
from farandole.net.store import StoreClient, StoreServer
from tests.kits.messages import mentioning

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import distributed  # noqa: E402

from farandole.torch.device.store import JobStore  # noqa: E402


@pytest.fixture
def clients() -> Iterator[list[StoreClient]]:
    secret = new_secret()
    server = StoreServer(secret)
    made = [StoreClient(server.address, secret) for _ in range(4)]
    yield made
    for client in made:
        client.close()
    server.close()


def test_each_method_of_the_job_store(clients: list[StoreClient]) -> None:
    store, other, foreign = (
        JobStore(client, prefix, 10.0) for client, prefix in zip(clients, "aab", strict=False)
    )
    store.set("key", "text")
    assert other.get("key") == b"text"
    assert other.check(["key"])
    assert not foreign.check(["key"])
    assert not store.check(["key", "absent"])
    store.wait(["key"])
    with pytest.raises(RendezvousError, match=mentioning("torch/a/absent")):
        store.wait(["key", "absent"], timedelta(seconds=0.01))
    store.set_timeout(timedelta(seconds=0.01))
    with pytest.raises(RendezvousError, match=mentioning("torch/a/absent")):
        store.get("absent")
    assert store.compare_set("key", b"other", b"new") == b"text"
    assert store.compare_set("key", b"text", b"new") == b"new"
    assert store.compare_set("absent", b"some", b"new") == b"some"
    assert store.compare_set("absent", b"", b"first") == b"first"
    assert store.delete_key("absent")
    assert not store.delete_key("absent")
    assert store.add("number", 3) == 3
    assert other.add("number", -5) == -2
    assert store.get("number") == b"-2"
    if hasattr(distributed.Store, "clone"):  # NCCL's threads ask for one
        assert distributed.PrefixStore("text", store).clone().add("number", 4) == 4
        assert store.get("text/number") == b"4"


def test_no_addition_is_lost(clients: list[StoreClient]) -> None:
    """Nor counted twice: every thread gets numbers that no other gets."""
    with ThreadPoolExecutor(4) as pool:
        counted = pool.map(
            lambda client: [JobStore(client, "n", 10.0).add("n", 1) for _ in range(25)], clients
        )
        assert sorted(number for numbers in counted for number in numbers) == list(range(1, 101))


def test_a_value_wakes_its_waiters(clients: list[StoreClient]) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = pool.submit(JobStore(clients[0], "w", 10.0).get, "key")
        both = pool.submit(JobStore(clients[1], "w", 10.0).wait, ["key", "number"])
        JobStore(clients[2], "w", 10.0).compare_set("key", "", "there")
        JobStore(clients[3], "w", 10.0).add("number", 1)
        assert waiting.result(10) == b"there"
        both.result(10)


def test_a_group_of_torch_meets_in_it(clients: list[StoreClient]) -> None:
    """Its C++ calls our methods, on threads that hold no lock of Python's."""

    def rank(number: int) -> Any:
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=20)
        store = JobStore(clients[number], "g", 20.0)
        group = distributed.ProcessGroupGloo(store, number, 3, options)
        tensor = torch.full((1000,), number + 1.0)
        group.allreduce([tensor]).wait()
        return tensor

    with ThreadPoolExecutor(3) as pool:
        assert all(bool((tensor == 6).all()) for tensor in pool.map(rank, range(3)))
