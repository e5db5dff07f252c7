"""Names of parameters for messages, from the modules that hold them.

A program need not pass ``named_parameters`` to an optimizer, so the process is searched for the
module with most of its parameters. That takes milliseconds, and happens only for a finding.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from farandole.torch.validation import NO_NAME


def names_of(parameters: Sequence[tuple[str, Any]]) -> list[str]:
    """Return the names of (name, parameter) pairs, with the model's names instead of generated
    ones.
    """
    unnamed = [parameter for name, parameter in parameters if name.startswith(NO_NAME)]
    known = model_names(unnamed) if unnamed else {}
    return [known.get(id(parameter), name) for name, parameter in parameters]


def model_names(parameters: Sequence[Any]) -> dict[int, str]:
    """Return the names of ``parameters`` in the module that has most of them, by id; the outermost
    module of several.
    """
    wanted = {id(parameter) for parameter in parameters}
    best: dict[int, str] = {}
    for each in modules():
        try:
            named = {id(value): name for name, value in each.named_parameters()}
        except Exception:  # a module in the middle of its construction
            continue
        found = {key: name for key, name in named.items() if key in wanted}
        if _rank(found) > _rank(best):
            best = found
    return best


def modules() -> list[Any]:
    """Return all modules of the process."""
    return [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]


def _rank(names: dict[int, str]) -> tuple[int, int]:
    return len(names), sum(map(len, names.values()))
