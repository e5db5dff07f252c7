"""The choice between direct exchange and exchange through host memory, made on every rank from the
same facts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import distributed

from farandole.base.contracts import Transport
from farandole.net.store import StoreClient
from farandole.torch.device.accelerator import Accelerator
from farandole.torch.device.store import JobStore


class View(NamedTuple):
    """A rank's view: its device, the reason why it cannot exchange directly (or an empty string),
    its ``--nccl``, and the number of visible devices.
    """

    identity: str
    lack: str
    wish: str
    devices: int = 1


class Decision(NamedTuple):
    """The decision: ``direct`` or not, and the reason. ``refused``: the error text if a rank
    requires direct exchange that is impossible. ``avoidable``: the ranks could have avoided this.
    """

    direct: bool
    why: str
    refused: str = ""
    avoidable: bool = False


def decide(views: Sequence[View], name: str) -> Decision:
    """Decide from the views of all ranks. Pure. ``name``: the library for direct exchange."""
    obstacle, avoidable = _obstacle(views)
    if not obstacle:
        return Decision(True, "every rank has its own GPU")
    if all(view.wish != "on" for view in views):
        return Decision(False, obstacle, avoidable=avoidable)
    return Decision(
        False,
        obstacle,
        f"--nccl=on (FARANDOLE_NCCL) was given, but GPUs cannot exchange directly by {name}:"
        f" {obstacle}. Give every rank its own GPU ({_CURE}), or exchange through host memory"
        " (--nccl=auto)",
    )


_CURE = "torch.cuda.set_device(hvd.local_rank())"


def _obstacle(views: Sequence[View]) -> tuple[str, bool]:
    """Return the obstacle to direct exchange, and whether the ranks could have avoided it."""
    for rank, view in enumerate(views):
        if view.wish == "off":
            return f"rank {rank} has --nccl=off", False
        if view.lack:
            return f"rank {rank} has {view.lack}", False
    firsts: dict[str, int] = {}
    for rank, view in enumerate(views):
        first = firsts.setdefault(view.identity, rank)
        if first != rank:
            why = f"ranks {first} and {rank} share {view.identity}"
            sharing = sum(other.identity == view.identity for other in views)
            if view.devices < sharing:
                return why, False
            return (
                f"{why} although {view.devices} GPUs are available; {_CURE} gives every rank its"
                " own",
                True,
            )
    return "", False


def gather_texts(host: Transport, text: str) -> list[str]:
    """Return every rank's string, in rank order. Collective."""
    mine = np.frombuffer(text.encode(), dtype=np.uint8).copy()
    lengths = np.zeros(host.size, dtype=np.int64)
    host.allgather(
        np.array([len(mine)], dtype=np.int64).view(np.uint8),
        lengths.view(np.uint8),
        [8] * host.size,
    )
    counts = lengths.tolist()
    everything = np.empty(sum(counts), dtype=np.uint8)
    host.allgather(mine, everything, counts)
    return [part.tobytes().decode() for part in np.split(everything, np.cumsum(counts)[:-1])]


def views(host: Transport, accelerator: Accelerator, wish: str, bar: str = "") -> list[View]:
    """Return the views of all ranks. ``bar``: a reason against direct exchange on this rank even if
    its device supports it. Collective.
    """
    lack = bar or accelerator.lack()
    mine = (
        View("", lack, wish)
        if lack
        else View(accelerator.identity(), "", wish, accelerator.count())
    )
    return [View(*json.loads(text)) for text in gather_texts(host, json.dumps(mine))]


def store_for(host: Transport, client: StoreClient | None, seconds: float) -> Any:
    """Return the store for the rendezvous of the ranks of ``host``: the job's, under a private
    prefix, or a private one for a single rank without a job. Collective.

    Keep the result as long as the backend that uses it: torch calls methods of the Python object
    without keeping it alive.
    """
    group = gather_texts(host, secrets.token_hex(8))[0]
    return distributed.HashStore() if client is None else JobStore(client, group, seconds)
