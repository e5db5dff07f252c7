"""The facts about a torch optimizer that codecs and strategies depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from farandole.base.contracts import Momentum
from farandole.strategies.inner_optimizer import InnerOptimizer

_ADAPTIVE = (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Rprop)


def groups_of(optimizer: Any) -> list[InnerOptimizer]:
    """Return the facts about each parameter group."""
    return [_facts(optimizer, group) for group in optimizer.param_groups]


def places_of(optimizer: Any, known: Mapping[int, int]) -> list[int]:
    """Return the number of the parameter group of each gradient. ``known``: the index of the
    gradient by the id of its parameter.
    """
    places = [0] * len(known)
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            places[known[id(parameter)]] = number
    return places


def _facts(optimizer: Any, group: Mapping[str, Any]) -> InnerOptimizer:
    momentum = Momentum()
    # with dampening, the first gradient has a different weight than the others
    if isinstance(optimizer, torch.optim.SGD) and not group["dampening"]:
        momentum = Momentum(float(group["momentum"]), bool(group["nesterov"]))
    return InnerOptimizer(
        type(optimizer).__name__,
        float(group.get("lr", 0.0)),
        momentum,
        "betas" in group or isinstance(optimizer, _ADAPTIVE),
    )
