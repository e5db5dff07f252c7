"""What the environment of this process says of its job: who told it, and what another job has left there."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from farandole.config import ORIGIN, PROCESS, STARTERS, TORCH, Connection, Placement, variables

if TYPE_CHECKING:
    from farandole.surroundings import Found


def forget_outer_job(env: MutableMapping[str, str]) -> None:
    """mpirun, srun or torchrun has started this process within a rank of a job, whose variables it inherits: it is no
    such rank, but one of a job of its own."""
    if ORIGIN not in env or not any(name in env for name in STARTERS):
        return
    from farandole.surroundings import origin

    if {*filter(None, origin(env).split(","))} <= {*env[ORIGIN].split(",")}:
        return  # or a container hides some of it
    torchruns = "TORCHELASTIC_RUN_ID" in env
    for name in (ORIGIN, PROCESS, *variables(Placement, Connection), *(() if torchruns else TORCH)):
        env.pop(name, None)


def told(env: Mapping[str, str]) -> bool:
    """Was this process told who it is, by a launcher or by hand?"""
    return any(env.get(name) for name in ("FARANDOLE_STORE", *variables(Placement)))


def found(env: Mapping[str, str]) -> Found | None:
    """The cluster that has started this process, if it is one of ours to know."""
    from farandole import surroundings  # here, so that jobs with a driver do not pay for it

    return surroundings.find(env)
