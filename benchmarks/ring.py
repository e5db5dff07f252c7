"""Allreduces in a ring of hosts, for the model of ``benchmarks.scale``. Runs on every rank."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import farandole.torch as hvd
from benchmarks.allreduce import SIZES, check
from benchmarks.crew import Plan
from benchmarks.peers import Ours
from benchmarks.samples import OURS, Case, interleave
from benchmarks.steps.torch import Team

REPETITIONS = 7


def cases(team: Team, plan: Plan) -> Iterator[Case]:
    ours = Ours()
    for name, nbytes, _ in SIZES[2:3] if plan.quick else SIZES[3:]:
        tensor = torch.empty(nbytes // 4)
        check(OURS, lambda tensor=tensor: ours.allreduce(tensor), {}, [tensor])  # type: ignore[misc]
        turns = {OURS: lambda tensor=tensor: ours.allreduce(tensor)}  # type: ignore[misc]
        yield Case(
            "ring", name, interleave(turns, repetitions=REPETITIONS, before=hvd.barrier), 1, nbytes
        )
