"""Processes of torchrun."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import ClassVar

from farandole.config import Placement
from farandole.errors import SettingsError
from farandole.surroundings.siblings import NOBODY, Siblings
from farandole.surroundings.variables import numbers

_WHO = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


class Torchrun:
    name: ClassVar[str] = "torchrun"
    ends_together = False

    def surroundings(self, env: Mapping[str, str]) -> Placement | None:
        # Others set RANK and its like, too: only torchrun tells the number of its run.
        who = numbers(env, _WHO) if "TORCHELASTIC_RUN_ID" in env else None
        if who is None:
            return None
        rank, size, local_rank, local_size, node, nodes = who
        return Placement(
            rank=rank, size=size, local_rank=local_rank, local_size=local_size, cross_rank=node, cross_size=nodes,
            hostname=socket.gethostname(),
        )  # fmt: skip

    def siblings(self, placement: Placement, env: Mapping[str, str]) -> Siblings:
        return NOBODY

    def broadcast(self, placement: Placement, text: Callable[[], str], timeout: float, siblings: Siblings) -> str:
        # The store at MASTER_ADDR answers anybody, so the job's secret must not go through it.
        raise SettingsError(
            f"torchrun started this process as rank {placement.rank} of {placement.size}, and it gives its ranks no "
            "way to agree on a secret. Start the job with: farandole run"
        )

    def settled(self) -> None:
        """They never are."""

    def abort(self) -> None:
        """torchrun ends the others itself."""
