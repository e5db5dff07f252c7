"""Small things that programs for several ranks need, the same for every framework."""

from __future__ import annotations

import builtins
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from farandole import context
from farandole.frontend.documented import documented
from farandole.frontend.objects import broadcast_object

_STRIDE = 0x9E3779B97F4A7C15  # odd and without pattern: seeds of neighbouring ranks have nothing in common
_SEEDS = 2**32  # numpy takes no larger ones


@documented(
    "init",
    "ValueError: ranks has a rank that the job does not have.",
    example="hvd.print(f'epoch {epoch}: loss {loss:.3f}')",
    values="what to print.",
    ranks="which ranks print: numbers, or 'all'. Rank 0 by default.",
    options="those of Python's print: sep, end, file, flush.",
)
def print(*values: object, ranks: Sequence[int] | str = (0,), **options: Any) -> None:
    """``print``, on rank 0 alone. Not collective: ranks that do not print go on at once."""
    size = context.size()
    if ranks != "all":
        odd = [rank for rank in ranks if rank not in range(size)]
        if odd or isinstance(ranks, str):
            raise ValueError(f"ranks={ranks!r}: this job has ranks 0 to {size - 1}; give some of them, or 'all'")
    if ranks == "all" or context.rank() in ranks:
        builtins.print(*values, **{"flush": True, **options})  # noqa: T201


def seed_of(seed: int, rank: int) -> int:
    """A seed of its own for a rank, from 0 to 2**32 - 1. Rank 0's is ``seed``."""
    return (seed + rank * (_STRIDE % _SEEDS)) % _SEEDS


def seed_python(seed: int) -> None:
    """Seed the generators that every program has: those of ``random`` and numpy."""
    random.seed(seed)
    np.random.seed(seed)


@documented(
    "init",
    "ValueError: seed is not a whole number from 0 to 2**32 - 1.",
    seed="a whole number, the same on all ranks.",
    example="augmenting = hvd.seed_everything(7)\nnoise = augmenting.normal(size=3)  # other noise on each rank",
)
def seed_everything(seed: int) -> np.random.Generator:
    """Seed the global generators of Python and numpy alike on all ranks; returns a ``numpy.random.Generator`` that is
    this rank's own, for what must differ: augmentation, noise."""
    check_seed(seed)
    rank = context.rank()
    seed_python(seed)
    return np.random.default_rng(seed_of(seed, rank))


def check_seed(seed: int) -> None:
    """Raise ValueError for what cannot be a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEEDS:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 to {_SEEDS - 1}")


def saved_by_rank_0(write: Callable[[IO[bytes]], None], path: str | os.PathLike[str]) -> None:
    """Have rank 0 write a file, whole or not at all; returns on all ranks when it is there. Collective.

    Whoever reads ``path`` meanwhile finds what was there before. Raises OSError or what ``write`` raised on rank 0; the
    other ranks a RuntimeError that says what happened there.
    """
    error: Exception | None = None
    if context.rank() == 0:
        try:
            _write_whole(write, Path(path))
        except Exception as found:
            error = found
    text = broadcast_object(f"{type(error).__name__}: {error}" if error else "", root_rank=0)
    if error is not None:
        raise error
    if text:
        raise RuntimeError(f"rank 0 could not save {os.fspath(path)!r}, and what was there before is untouched: {text}")


def _write_whole(write: Callable[[IO[bytes]], None], path: Path) -> None:
    """Write beside the place, and move it there when it is on the disk."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the name, too, is on the disk then
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
