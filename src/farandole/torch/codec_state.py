"""A codec's state, such as residuals, within its optimizer's state. It belongs to one rank; other
ranks ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farandole.base.contracts import Codec
from farandole.job import context
from farandole.job.context import ProcessSet


def state_of(codec: Codec | None, process_set: ProcessSet) -> dict[str, Any]:
    """Return ``{"codec": ...}``, or an empty dict if the codec has no state. Call it between two
    steps.
    """
    if codec is None or not _takes_part(process_set):
        return {}
    kept = {name: torch.from_numpy(array) for name, array in codec.state_dict().items()}
    return {"codec": {**_owner(codec, process_set), "state": kept}} if kept else {}


def load(
    codec: Codec | None, process_set: ProcessSet, state: Mapping[str, Any] | None, *, own: bool
) -> None:
    """Load the state that ``state_of`` returned on this rank, with the same number of ranks and the
    same codec.

    Any other state resets the codec, because its residuals belong to other weights. ``own``: the
    optimizer created the codec; one that the program created is left unchanged then, because the
    program may have loaded it.
    """
    if codec is None or not _takes_part(process_set):
        return
    found, owner = (state or {}).get("codec", {}), _owner(codec, process_set)
    if found and owner == {name: found[name] for name in owner}:
        codec.load_state_dict({name: tensor.numpy() for name, tensor in found["state"].items()})
    elif own:
        codec.load_state_dict({})


def _takes_part(process_set: ProcessSet) -> bool:
    """Return whether this rank is in the job: an elastic job may have lost its ranks."""
    return context.takes_part() and process_set.included()


def _owner(codec: Codec, process_set: ProcessSet) -> dict[str, Any]:
    return {"spec": codec.spec, "rank": process_set.rank(), "size": process_set.size()}
