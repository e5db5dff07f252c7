"""The tensors of a PyTorch program that are equal on all ranks, and their bytes."""

from __future__ import annotations

from typing import Any

import torch

from farandole.base.digests import CHUNK, digest_of_bytes, whole_digest
from farandole.torch.weights import WeightState


def has_equal_weights(value: Any) -> bool:
    """Return whether the weights of an optimizer are equal on all ranks at present; true for any
    other object.
    """
    state = getattr(value, "_farandole", None)
    return not isinstance(state, WeightState) or state.is_averaged


def optimizer_tensors(name: str, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the tensors in an optimizer's state, by name; none if each rank has its own, as with
    a strategy that averages weights.
    """
    if isinstance(getattr(optimizer, "_farandole", None), WeightState):
        return {}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return {
        f"{name}.{key}.{number}": value
        for number, parameter in enumerate(parameters)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
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
