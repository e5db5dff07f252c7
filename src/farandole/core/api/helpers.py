"""Small things that programs for several ranks need, the same for every framework."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from farandole.core.api.documented import documented
from farandole.core.api.objects import broadcast_object
from farandole.job import context

# odd and without pattern: seeds of neighbouring ranks have nothing in common
_STRIDE = 0x9E3779B97F4A7C15
_SEEDS = 2**32  # numpy takes no larger ones
F = TypeVar("F", bound=Callable[..., Any])


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
            raise ValueError(
                f"ranks={ranks!r}: this job has ranks 0 to {size - 1}; give some of them, or 'all'"
            )
    if ranks == "all" or context.rank() in ranks:
        builtins.print(*values, **{"flush": True, **options})  # noqa: T201


def seeding(example: str) -> Callable[[F], F]:
    """``documented``, for the ``seed_everything`` of a framework."""
    return documented(
        "init",
        "ValueError: seed is not a whole number from 0 to 2**32 - 1.",
        seed="a whole number, the same on all ranks.",
        example=example,
    )


def saving(example: str, **arguments: str) -> Callable[[F], F]:
    """``documented``, for the ``save`` of a framework."""
    return documented(
        "init",
        "What rank 0's disk or serializer raises, on rank 0; RuntimeError with its text on the"
        " others.",
        example=example,
        **arguments,
    )


def seeded(seed: int) -> int:
    """Seed the generators that every program has, those of ``random`` and numpy, alike on all
    ranks; returns a seed for this rank's own, from 0 to 2**32 - 1. It is never ``seed``: rank 0's
    noise would repeat what models began with.
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
    """Seed the global generators of Python and numpy alike on all ranks; returns a
    ``numpy.random.Generator`` that is this rank's own, for what must differ: augmentation, noise.
    """
    return np.random.default_rng(seeded(seed))


@saving(
    model="a Keras model. Rank 0's counts.",
    path="the file, with the ending .keras, .h5 or .hdf5. Its folder must exist.",
    options="those of model.save.",
    example="hvd.save(model, 'last.keras')\nmodel = hvd.load_model('last.keras')",
)
def save_model(model: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """``model.save`` by rank 0, whole or not at all: the file is replaced when the new one is on
    the disk, so that a job that ends meanwhile leaves the old one. All ranks call it, and go on
    when it is there.
    """
    if os.path.splitext(path)[1] not in (".keras", ".h5", ".hdf5"):
        raise ValueError(
            f"path={os.fspath(path)!r} must end with .keras, .h5 or .hdf5: Keras chooses the format"
            " by it"
        )
    saved_by_rank_0(lambda place: model.save(place, **options), path)


def saved_by_rank_0(write: Callable[[str], None], path: str | os.PathLike[str]) -> None:
    """Have rank 0 write a file, whole or not at all; returns on all ranks when it is there.
    Collective.

    ``write`` is given another path, with the file's name in another folder. Whoever reads ``path``
    meanwhile finds what was there before. Raises OSError or what ``write`` raised on rank 0; the
    other ranks a RuntimeError that says what happened there.
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
            f"rank 0 could not save {os.fspath(path)!r}, and what was there before is untouched:"
            f" {text}"
        )


def _write_whole(write: Callable[[str], None], path: str) -> None:
    """Write beside the place, and move it there when it is on the disk."""
    import tempfile  # here: few programs save, and it loads shutil

    folder, name = os.path.split(os.path.abspath(path))
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~_umask()
    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".tmp", dir=folder) as temporary:
        place = os.path.join(temporary, name)
        write(place)
        os.chmod(place, mode)
        _sync(place)
        os.replace(place, path)
    _sync(folder)  # the name, too, is on the disk then


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
