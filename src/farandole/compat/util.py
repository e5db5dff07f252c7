"""``horovod.common.util``: helpers that are private by intent, but used by setup scripts and
tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from farandole.compat.later import missing_module_error
from farandole.core.api import capabilities

T = TypeVar("T")
# The supported bindings; horovod.<name> exists for each.
BINDINGS = {
    "torch": "farandole.torch",
    "tensorflow": "farandole.tensorflow",
    "mxnet": "farandole.mxnet",
    "keras": "farandole.keras",
}
FRAMEWORKS = ("tensorflow", "torch", "mxnet")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether ``horovod.<ext_base_name>`` can be imported."""
    name = ext_base_name.removeprefix("horovod.")
    there = name in BINDINGS and find_spec(name) is not None
    if verbose and not there:
        reason = (
            f"{name} is not installed"
            if name in BINDINGS
            else "this version of Farandole does not support it"
        )
        print(f"horovod.{name} is not available: {reason}")  # noqa: T201
    return there


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: Any) -> None:
    """Raise ImportError if ``ext_name`` ("horovod.torch") has no binding.

    The other arguments, which concern compilation, are ignored.
    """
    name = ext_name.removeprefix("horovod.")
    if name not in BINDINGS:
        raise missing_module_error(f"horovod.{name}") or ImportError(
            f"Extension {ext_name} has not been built", name=ext_name
        )
    if find_spec(name) is None:
        raise ImportError(
            f"Extension {ext_name} has not been built: {name} is not installed (pip install {name})"
        )


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework sees a GPU."""
    return extension_available(ext_base_name, verbose) and bool(
        _ask("cuda_built") or _ask("rocm_built")
    )


def mpi_built(verbose: bool = False) -> bool:
    """Return whether mpirun can start ranks."""
    return capabilities.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Return whether ranks can be started without MPI, which is always true."""
    return capabilities.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """Return whether torch includes NCCL."""
    return bool(_ask("nccl_built"))


def ddl_built(verbose: bool = False) -> bool:
    return capabilities.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return capabilities.ccl_built()


def _ask(name: str) -> Any:
    """Return torch's answer; False without torch."""
    return (
        getattr(importlib.import_module("farandole.torch"), name)()
        if extension_available("torch")
        else False
    )


def _cache(function: Callable[..., T]) -> Callable[..., T]:
    """Remember the results of ``function`` by its arguments."""
    return functools.lru_cache(maxsize=None)(function)


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables (None: unset them) within a with block."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set(kwargs)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[..., Any]:
    """Return a function of ``op`` and the deprecated ``average`` that returns the intended op."""

    def meant(op: Any = None, average: bool | None = None) -> Any:
        if op is not None:
            if average is not None:
                raise ValueError(
                    "The op parameter supersedes average. Please provide only one of them."
                )
            return op
        if average is None:
            return reduce_ops.Average
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed in v1.0",
            DeprecationWarning,
            stacklevel=3,
        )
        return reduce_ops.Average if average else reduce_ops.Sum

    return meant


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741
    """Split ``l`` into ``n`` parts, whose lengths differ by at most one, the longer ones first."""
    if n < 1:
        raise ValueError(f"split_list(..., n={n}): n must be >= 1")
    length, longer = divmod(len(l), n)
    begins = [i * length + min(i, longer) for i in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(begins)]


def is_iterable(x: Any) -> bool:
    return isinstance(x, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether version ``ver`` (x.y.z) is at least ``target``. Raises ValueError for text
    that is not a version.
    """
    return _version(ver) >= _version(target)


def _version(text: Any) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r} is not a version: it must be text of the form x.y.z")
    return tuple(int(part) for part in found.groups())


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Raise ``exception`` if there is one.

    Horovod compares versions with the one it was compiled for. Nothing is compiled here, so any
    imported version is supported, and an exception has another cause.
    """
    if exception is not None:
        raise exception


def get_ext_suffix() -> str:
    """Return the suffix of compiled extensions in this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of a compiled extension of Horovod; no such file exists here."""
    return os.path.join(os.path.dirname(os.path.abspath(pkg_path)), *args) + get_ext_suffix()
