"""What a codec keeps (residuals, say), in the state of its optimizer. It is of one rank: others
leave it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farandole.base.contracts import Codec
from farandole.job import context
from farandole.job.context import ProcessSet


def state_of(codec: Codec | None, process_set: ProcessSet) -> dict[str, Any]:
    """``{"codec": ...}``; empty if nothing is kept. Call it between two steps."""
    if codec is None or not _takes_part(process_set):
        return {}
    kept = {name: torch.from_numpy(array) for name, array in codec.state_dict().items()}
    return {"codec": {**_owner(codec, process_set), "state": kept}} if kept else {}


def load(
    codec: Codec | None, process_set: ProcessSet, state: Mapping[str, Any] | None, *, own: bool
) -> None:
    """Load what ``state_of`` gave on this rank of as many, for the same codec. Without that,
    nothing is kept: what was not sent is of other weights. ``own``: the optimizer has made the
    codec; one that the program has made is left alone then, which may have loaded it by itself.
    """
    if codec is None or not _takes_part(process_set):
        return
    found, owner = (state or {}).get("codec", {}), _owner(codec, process_set)
    if found and owner == {name: found[name] for name in owner}:
        codec.load_state_dict({name: tensor.numpy() for name, tensor in found["state"].items()})
    elif own:
        codec.load_state_dict({})


def _takes_part(process_set: ProcessSet) -> bool:
    """Not while an elastic job has lost its ranks."""
    return context.takes_part() and process_set.included()


def _owner(codec: Codec, process_set: ProcessSet) -> dict[str, Any]:
    return {"spec": codec.spec, "rank": process_set.rank(), "size": process_set.size()}
