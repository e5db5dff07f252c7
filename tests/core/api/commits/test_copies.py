"""Copies of commits between ranks, in the background."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.core.api.objects import allgather_object
from farandole.core.api.state import ObjectState
from farandole.job import context
from tests.kits.messages import mentioning
from tests.run_job import job


def test_keepers_have_the_newest_commits() -> None:
    def body(rank: int) -> Any:
        from farandole.core.api.commits.copies import CopyReceiver, CopySender, Shelf

        messages, shelf = context.messages_among(range(3)), Shelf()
        assert messages is not None
        for ward in ((rank - 1) % 3, (rank - 2) % 3):
            CopyReceiver(messages, ward, 10 + ward, shelf)
        sender = CopySender(messages, rank, [(rank + 1) % 3, (rank + 2) % 3])
        weights = np.zeros(200_000)
        for number in range(1, 6):
            weights = weights.copy()
            weights[:number] = number + rank
            sender.send(number, frozenset({rank}), {"w": weights})
        sender.flush()
        allgather_object(None)  # no rank leaves before the others have its copy
        sender.close()
        return {
            process: (copy.number, copy.rank, copy.absorbed, float(copy.values["w"].sum()))
            for process, copy in shelf.newest().items()
        }

    found = job(3, body)
    for rank in range(3):
        for ward in {0, 1, 2} - {rank}:
            assert found[rank][10 + ward] == (5, ward, {ward}, 5.0 * (5 + ward))


def test_ranks_keep_their_own_values_in_a_synchronization() -> None:
    def body(rank: int) -> Any:
        state = ObjectState(step=rank, seen=[rank])
        state.register_per_rank("seen")
        state.sync()
        first = state.step, list(state.seen)
        state.seen.append(7)
        state.restore()
        return first, state.seen

    assert job(2, body) == [((0, [0]), [0]), ((0, [1]), [1])]


def test_an_unknown_value_cannot_be_per_rank() -> None:
    with pytest.raises(ValueError, match=mentioning("seen", "step")):
        ObjectState(step=0).register_per_rank("seen")
