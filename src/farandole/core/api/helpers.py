"""Helpers for programs with several ranks, the same in every framework."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from farandole.core.api.documented import documented
from farandole.core.api.objects import broadcast_object
from farandole.job import context

# odd and irregular, so that the seeds of neighbouring ranks are unrelated
_STRIDE = 0x9E3779B97F4A7C15
_SEEDS = 2**32  # numpy accepts no larger seeds
F = TypeVar("F", bound=Callable[..., Any])


@documented(
    "init",
    "ValueError: ranks contains a rank that is not in the job.",
    example="hvd.print(f'epoch {epoch}: loss {loss:.3f}')",
    values="values to print.",
    ranks="ranks that print: numbers, or 'all'. Rank 0 by default.",
    options="keyword arguments of Python's print: sep, end, file, flush.",
)
def print(*values: object, ranks: Sequence[int] | str = (0,), **options: Any) -> None:
    """Print on rank 0 only, or on other ``ranks``. Not collective: ranks that do not print continue
    immediately.
    """
    size = context.size()
    if ranks != "all":
        odd = [rank for rank in ranks if rank not in range(size)]
        if odd or isinstance(ranks, str):
            raise ValueError(
                f"ranks={ranks!r}: this job has ranks 0 to {size - 1}; pass some of them, or 'all'"
            )
    if ranks == "all" or context.rank() in ranks:
        builtins.print(*values, **{"flush": True, **options})  # noqa: T201


def seeding(example: str) -> Callable[[F], F]:
    """Return the decorator ``documented`` for a framework's ``seed_everything``."""
    return documented(
        "init",
        "ValueError: seed is not a whole number from 0 to 2**32 - 1.",
        seed="a whole number, the same on all ranks.",
        example=example,
    )


def saving(example: str, **arguments: str) -> Callable[[F], F]:
    """Return the decorator ``documented`` for a framework's ``save``."""
    return documented(
        "init",
        "An error of rank 0's disk or serializer, on rank 0; RuntimeError with its text on the"
        " other ranks.",
        example=example,
        **arguments,
    )


def seeded(seed: int) -> int:
    """Seed ``random`` and numpy with the same seed on all ranks. Return a seed for this rank's own
    generator, from 0 to 2**32 - 1.

    The returned seed is never ``seed`` itself: with it, rank 0's noise would repeat the initial
    values of models. Raises ValueError for an invalid seed.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEEDS:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 to {_SEEDS - 1}")
    import random

    rank = context.rank()
    random.seed(seed)
    np.random.seed(seed)
    return (seed + (rank + 1) * (_STRIDE % _SEEDS)) % _SEEDS


@seeding(
    "augmenting = hvd.seed_everything(7)\nnoise = augmenting.normal(size=3)  # other noise on each"
    " rank"
)
def seed_everything(seed: int) -> np.random.Generator:
    """Seed the global generators of Python and numpy with the same seed on all ranks. Return a
    ``numpy.random.Generator`` with this rank's own seed, for values that must differ, such as
    augmentation and noise.
    """
    return np.random.default_rng(seeded(seed))


@saving(
    model="a Keras model; rank 0's is saved.",
    path="the file, with the ending .keras, .h5 or .hdf5. Its folder must exist.",
    options="the arguments of model.save.",
    example="hvd.save(model, 'last.keras')\nmodel = hvd.load_model('last.keras')",
)
def save_model(model: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Save ``model`` on rank 0 with ``model.save``, atomically: an existing file is replaced once
    the new one is on disk. Collective: all ranks continue when the file exists.
    """
    if os.path.splitext(path)[1] not in (".keras", ".h5", ".hdf5"):
        raise ValueError(
            f"path={os.fspath(path)!r} must end with .keras, .h5 or .hdf5, which select the format"
        )
    saved_by_rank_0(lambda place: model.save(place, **options), path)


def saved_by_rank_0(write: Callable[[str], None], path: str | os.PathLike[str]) -> None:
    """Write a file on rank 0, atomically, and return on all ranks when it exists. Collective.

    ``write`` receives a temporary path with the same file name. Until the end, readers of ``path``
    find the earlier file. Raises OSError or the exception of ``write`` on rank 0, and a
    RuntimeError with its text on the other ranks.
    """
    error: Exception | None = None
    if context.rank() == 0:
        try:
            _write_whole(write, os.fspath(path))
        except Exception as found:
            error = found
    text = broadcast_object(f"{type(error).__name__}: {error}" if error else "", root_rank=0)
    if error is not None:
        raise error
    if text:
        raise RuntimeError(
            f"rank 0 could not save {os.fspath(path)!r}; an existing file is unchanged: {text}"
        )


def _write_whole(write: Callable[[str], None], path: str) -> None:
    """Write to a temporary folder next to the target, and move the file once it is on disk."""
    import tempfile  # imported here: few programs save, and it loads shutil

    folder, name = os.path.split(os.path.abspath(path))
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~_umask()
    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".tmp", dir=folder) as temporary:
        place = os.path.join(temporary, name)
        write(place)
        os.chmod(place, mode)
        _sync(place)
        os.replace(place, path)
    _sync(folder)  # make the new name durable, too


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
