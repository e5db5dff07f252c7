"""What DistributedOptimizer was given, checked. Everything here raises ValueError for what makes no sense."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from farandole.frontend.predivide import predivided
from farandole.strategies.buckets import Terms
from farandole.types import ReduceOp


def terms(op: int, predivide: float) -> Terms:
    factors = predivided(op, predivide)
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError(f"op={op!r} makes no sense of gradients; use Average, Sum or Adasum")
    return Terms(ReduceOp(op), *factors)


def names(optimizer: Any, named_parameters: Iterable[tuple[str, Any]] | None) -> dict[int, str]:
    """Names by the parameter's id; none if none were given."""
    if named_parameters is None:
        return {}
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    given = [name for name, _ in named]
    duplicates = sorted({name for name in given if given.count(name) > 1}) if len(set(given)) < len(given) else []
    if duplicates:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}"
        )
    result = {id(parameter): name for name, parameter in named}
    unnamed = [id(each) for group in optimizer.param_groups for each in group["params"] if id(each) not in result]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. Python object ids: "
            f"{', '.join(map(str, unnamed))}"
        )
    return result


def all_names(optimizer: Any, known: dict[int, str]) -> dict[Any, str]:
    return {
        parameter: known.get(id(parameter), f"allreduce.noname.{number}.{place}")
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def check_groups(groups: Any) -> None:
    if groups is None:
        return
    if not (
        isinstance(groups, (list, tuple)) or (isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0)
    ):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if isinstance(groups, (list, tuple)):
        if not all(isinstance(group, (list, tuple)) for group in groups):
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        members = [parameter for group in groups for parameter in group]
        if not all(isinstance(parameter, torch.Tensor) for parameter in members):
            raise ValueError("groups must consist of torch.Tensor.")
        if len({id(parameter) for parameter in members}) < len(members):
            raise ValueError("A parameter can only appear once in groups.")


def check_passes(passes: int) -> None:
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
