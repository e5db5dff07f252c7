"""The tensors of a PyTorch program that are equal on all ranks, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from farandole.base.digests import CHUNK, digest_of_bytes, whole_digest
from farandole.job import context
from farandole.torch.weights import WeightState


def has_equal_weights(value: Any) -> bool:
    """Return whether the weights of an optimizer are equal on all ranks at present; true for any
    other object.
    """
    state = getattr(value, "_farandole", None)
    return not isinstance(state, WeightState) or state.is_averaged


def is_sharded(tensor: Any) -> bool:
    """Return whether each rank has another part of a tensor: a DTensor, or a parameter that FSDP
    manages.
    """
    flags = ("placements", "_fsdp_flattened", "_is_flat_param")
    return any(getattr(tensor, each, False) for each in flags)


def parameters_of_sets(values: Iterable[Any]) -> set[int]:
    """Return the ids of the parameters whose gradients are reduced over a process set only: other
    ranks train other weights.
    """
    return {
        id(parameter)
        for value in values
        if isinstance(value, torch.optim.Optimizer) and _is_of_set(value)
        for group in value.param_groups
        for parameter in group["params"]
    }


def _is_of_set(optimizer: torch.optim.Optimizer) -> bool:
    ranks = getattr(optimizer, "process_set", None) if hasattr(optimizer, "_farandole") else None
    return ranks is not None and ranks.size() != context.size()


def optimizer_tensors(name: str, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the tensors in an optimizer's state, by name; none if each rank has its own, as with
    a strategy that averages weights, with a process set, or if the state is divided among the
    ranks (ZeroRedundancyOptimizer).
    """
    is_divided = any(each.__name__ == "ZeroRedundancyOptimizer" for each in type(optimizer).mro())
    own = isinstance(getattr(optimizer, "_farandole", None), WeightState)
    if own or is_divided or _is_of_set(optimizer):
        return {}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return {
        f"{name}.{key}.{number}": value
        for number, parameter in enumerate(parameters)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not (is_sharded(parameter) or is_sharded(value))
    }


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor, in the order of its elements, as an array on the host."""
    return _flat(tensor).view(torch.uint8).cpu().numpy()


def whole_digest_of(tensor: Any) -> int:
    """Return a digest of all bytes of a tensor; see ``base.digests.whole_digest``. On a device,
    only sums are copied to the host.
    """
    flat = _flat(tensor)
    if not flat.is_cuda:
        return whole_digest(flat.view(torch.uint8).numpy())
    octets = flat.view(torch.uint8)
    count = len(octets) // (8 * CHUNK)
    whole = octets[: count * 8 * CHUNK].view(torch.int64).reshape(count, CHUNK)
    sums = whole.sum(dim=1).cpu().numpy()
    rest = octets[count * 8 * CHUNK :].cpu().numpy()
    return digest_of_bytes(f"{whole_digest(rest)}".encode(), sums.tobytes())


def _flat(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1)
