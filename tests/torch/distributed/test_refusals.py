"""A call that one rank refuses fails on all of them, and their next calls meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.messages import mentioning, mentions
from tests.torch.distributed.tools import members

pytest.importorskip("torch")


def refused_here(rank: int) -> list[tuple[str, str]]:
    """Return the type and the text of each call's error on this rank of 2."""
    import torch
    from torch import distributed as dist

    ones, errors = torch.ones(4), list[tuple[str, str]]()
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    lists = [ones] * (1 + rank)
    odd, splits = torch.ones(4 - rank), [2, 2] if rank else [3, 2]
    calls: list[Callable[[], Any]] = [
        lambda: dist.gather(ones, lists if rank == 0 else None, 0),
        lambda: dist.scatter(torch.zeros(4), lists if rank == 0 else None, 0),
        lambda: dist.all_gather(lists, ones),
        lambda: dist.reduce_scatter(torch.zeros(4), lists),
        lambda: dist.all_to_all([torch.zeros(4)] * 2, lists),
        lambda: dist.all_to_all_single(torch.zeros(4), ones, [2, 2], splits),
        lambda: dist.all_to_all_single(torch.zeros(4), odd),
        lambda: dist.broadcast(torch.eye(2).to_sparse() if rank else torch.eye(2), 0),
        lambda: dist.broadcast(torch.empty(4, device="meta") if rank else ones, 0),
        lambda: dist.all_reduce(freed if rank else ones),
        lambda: dist.reduce(ones.to(torch.float8_e4m3fn) if rank else ones, 0),
        lambda: dist.broadcast(freed if rank else ones, 0, async_op=True).wait(),
    ]
    for number, call in enumerate(calls):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        errors.append((type(caught.value).__name__, str(caught.value)))
        total = torch.full((2,), float(number + rank))
        dist.all_reduce(total)
        assert total.tolist() == [2 * number + 1.0] * 2, number
    return errors


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_a_refusal_on_one_rank_is_that_call_on_the_others(wire: str) -> None:
    by_rank = members(2, refused_here, wire=wire)
    refusing = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    for rank, errors in enumerate(by_rank):
        assert [kind for kind, _ in errors] == [
            "ValueError" if rank == one else "RefusedError" for one in refusing
        ]
    for call, one in enumerate(refusing):
        own, others = by_rank[one][call][1], by_rank[1 - one][call][1]
        assert mentions(others, f"rank {one}"), others
        assert f"ValueError: {own}"[:600] in others


def expanded(rank: int) -> None:
    """On 2 ranks: several elements share one place in memory, as ``expand()`` creates them."""
    import torch
    from torch import distributed as dist

    def tensor() -> Any:
        return torch.full((1, 3), rank + 1.0).expand(4, 3)

    def check(found: Any, value: float) -> None:
        assert torch.equal(found, torch.full((4, 3), value)), found

    given = tensor()
    dist.broadcast(given, 1)
    check(given, 2.0)
    given = tensor() if rank == 0 else torch.zeros(4, 3)
    dist.broadcast(given, 0)
    check(given, 1.0)
    given = tensor()
    dist.all_reduce(given)
    check(given, 3.0)
    given = tensor() if rank == 1 else torch.full((4, 3), 1.0)
    dist.reduce(given, 1)
    check(given, 3.0 if rank == 1 else 1.0)
    given = tensor()
    dist.scatter(given, [torch.full((4, 3), 5.0 + peer) for peer in range(2)] if rank else None, 1)
    check(given, 5.0 + rank)
    given = tensor()
    if rank:
        dist.send(given, 0)
    else:
        dist.recv(given, 1)
    check(given, 2.0)
    given = torch.full((1,), float("nan")).expand(4)
    dist.all_reduce(given)
    assert given.isnan().all()

    given = torch.arange(4.0) if rank == 0 else torch.zeros(1).expand(4)
    if rank == 0:
        dist.broadcast(given, 0)
    else:
        with pytest.raises(ValueError, match=mentioning("[4]", "tensor.clone")):
            dist.broadcast(given, 0)
    dist.all_reduce(total := torch.ones(2))
    assert total.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("wire", ["auto", "tcp"])
def test_an_expanded_tensor_takes_one_value_per_place(wire: str) -> None:
    members(2, expanded, wire=wire)
