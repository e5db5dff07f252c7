"""Backends for GPU tensors, as the program names them: ``"cpu:farandole,cuda:nccl"``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from farandole.torch.binding import NO_ELEMENTS


def devices_of(group: Any) -> list[Any]:
    """Return the devices other than the CPU for which ``group`` has a backend."""
    return [torch.device(device) for device in _configured(group) if device != "cpu"]


def backend_for(group: Any, device: str, store: Any) -> Any:
    """Create the backend for tensors of ``device`` on first use, so that other programs do not pay
    for it. Raises ValueError if the program named none. Collective.
    """
    name = _configured(group).get(device)
    kind = {
        "nccl": distributed.ProcessGroup.BackendType.NCCL,
        "gloo": distributed.ProcessGroup.BackendType.GLOO,
    }.get(name or "")
    if device == "meta":
        raise ValueError(NO_ELEMENTS)
    if name is None or kind is None:
        both = 'name a backend for both, as in init_process_group("cpu:farandole,cuda:nccl"), or '
        raise ValueError(
            f"the backend farandole handles CPU tensors, but this tensor is on {device!r}. To fix"
            f" this, {both if device == 'cuda' else ''}copy the tensor with tensor.cpu()"
        )
    prefixed = distributed.PrefixStore(f"{device}/", store)
    timeout = timedelta(seconds=group.state.timeout)
    if name == "nccl":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timeout
        backend = distributed.ProcessGroupNCCL(prefixed, group.rank(), group.size(), options)
    else:
        backend = distributed.ProcessGroupGloo(
            prefixed, group.rank(), group.size(), timeout=timeout
        )
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device(device), kind, backend)
    return backend


def is_being_created(group: Any) -> bool:
    """Return whether torch is still creating the group: with ``init_process_group(device_id=...)``,
    it requests a backend during the creation, to connect early.
    """
    return not _configured(group)


def _configured(group: Any) -> dict[str, str]:
    try:
        config = str(distributed.get_backend_config(group))
    # torch's errors for a group that is being created
    except (ValueError, RuntimeError, AssertionError, KeyError, TypeError):
        return {}
    pairs = [part.partition(":") for part in config.split(",")]
    return {device: name for device, _, name in pairs if name}
