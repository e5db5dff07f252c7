"""The exactness of a job with a fixed global batch: weights are bit-identical, or equal up to
rounding.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from farandole.core.api.objects import allgather_object

Facts = tuple[tuple[str, str], ...]


def facts_of(parameters: Sequence[torch.Tensor]) -> Facts:
    """Return the facts on which the bits of a share's gradient depend, apart from the program, with
    a name for each.
    """
    devices = sorted({parameter.device.type for parameter in parameters})
    names = sorted({_name(parameter.device) for parameter in parameters if parameter.is_cuda})
    return (
        ("PyTorch", torch.__version__),
        ("processor", f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"),
        ("number of threads", str(torch.get_num_threads())),
        ("device", " ".join([*devices, *names])),
    )


def _name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device))


def agreed(own: Facts, before: Facts | None) -> tuple[Facts, str]:
    """Return the facts of rank 0, and the reason why weights are equal only up to rounding; empty
    if they are bit-identical. Collective.

    ``before``: the facts of earlier memberships of the job, if there were any.
    """
    found: list[Any] = allgather_object((own, before), name="shares.facts")
    first = found[0][1] or found[0][0]
    return first, objection(first, [each for each, _ in found])


def objection(first: Facts, others: Sequence[Facts]) -> str:
    """Return the first reason for differences in rounding; empty if there is none."""
    for name, value in first:
        seen = {dict(each)[name] for each in others} | {value}
        if len(seen) > 1:
            return f"the ranks differ in {name}: {', '.join(sorted(seen))}"
    on_gpu = dict(first)["device"] not in ("", "cpu")
    if on_gpu and not torch.are_deterministic_algorithms_enabled():
        return (
            "some kernels on GPUs are not deterministic: torch.use_deterministic_algorithms(True)"
        )
    return ""
