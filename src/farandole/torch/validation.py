"""Checks of DistributedOptimizer's arguments. They raise ValueError for invalid arguments, and
TypeError for objects that are not optimizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


def check_optimizer(function: str, optimizer: Any) -> None:
    """Raise TypeError unless ``optimizer`` has ``param_groups``. Some libraries have optimizers
    that do not derive from torch's class.
    """
    if isinstance(optimizer, type) or not hasattr(optimizer, "param_groups"):
        found = (
            f"the class {optimizer.__name__}"
            if isinstance(optimizer, type)
            else f"a {type(optimizer).__name__}"
        )
        raise TypeError(
            f"{function} takes an optimizer such as torch.optim.SGD(model.parameters(), lr=0.1),"
            f" not {found}"
        )


NO_NAME = "allreduce.noname."  # the prefix of names of unnamed parameters


def names(optimizer: Any, named_parameters: Iterable[tuple[str, Any]] | None) -> dict[int, str]:
    """Return names by parameter id; an empty dict without ``named_parameters``. Raises ValueError
    for duplicate or missing names.
    """
    if named_parameters is None:
        return {}
    named = list(named_parameters)
    odd = next((pair for pair in named if not isinstance(pair, tuple)), None)
    if odd is not None:
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced"
            f" by model.named_parameters(). (This one contains a {type(odd).__name__}; was it"
            " model.parameters()?)"
        )
    given = [name for name, _ in named]
    duplicates = (
        sorted({name for name in given if given.count(name) > 1})
        if len(set(given)) < len(given)
        else []
    )
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates:"
            f" {', '.join(duplicates)}. With several models, prefix the names of each:"
            " (f'encoder.{name}', parameter)"
        )
    result = {id(parameter): name for name, parameter in named}
    unnamed = [
        f"number {place} of group {number}, of shape {tuple(parameter.shape)}"
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
        if id(parameter) not in result
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named."
            f" Parameters of the optimizer without a name: {_some(unnamed, '; ')}. Given names:"
            f" {_some(given) or 'none'}. Pass the names of all parameters of the model that the"
            " optimizer was created for: model.named_parameters()"
        )
    return result


def _some(texts: Sequence[str], separator: str = ", ") -> str:
    shown = separator.join(texts[:3])
    return shown if len(texts) <= 3 else f"{shown} and {len(texts) - 3} more"


def all_names(optimizer: Any, known: dict[int, str]) -> dict[Any, str]:
    return {
        parameter: known.get(id(parameter)) or name_of(number, place)
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def name_of(group: int, place: int) -> str:
    """Return the name of an unnamed parameter."""
    return f"{NO_NAME}{group}.{place}"


def check_members(groups: Any) -> None:
    """Raise ValueError if ``groups`` has members that are not tensors, or a tensor twice."""
    members = (
        [parameter for group in groups for parameter in group]
        if isinstance(groups, (list, tuple))
        else []
    )
    if not all(isinstance(parameter, torch.Tensor) for parameter in members):
        kinds = sorted(
            {type(member).__name__ for member in members if not isinstance(member, torch.Tensor)}
        )
        raise ValueError(
            f"groups must consist of torch.Tensor. (got {', '.join(kinds)}; pass parameters, not"
            " names)"
        )
    if len({id(parameter) for parameter in members}) < len(members):
        shapes = sorted(
            {
                tuple(member.shape)
                for member in members
                if sum(member is other for other in members) > 1
            }
        )
        raise ValueError(
            "A parameter can only appear once in groups. (repeated parameters have the shapes"
            f" {shapes})"
        )
