"""A cloudpickle pickler that keeps the file names of functions, and pickles more objects.

cloudpickle omits file names from version 3.1.3 on; without them, tracebacks and reports of
collectives cannot show a source line. The pickler also accepts torch's parametrized modules, caches
of functools, and IPython's names.
"""

from __future__ import annotations

import functools
import io
import sys
from collections import ChainMap
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any

import cloudpickle

SPAWNED = "__mp_main__"  # the script's module name in a process spawned by multiprocessing

_reduce: Callable[[CodeType], tuple[Any, ...]] = cloudpickle.Pickler.dispatch_table[CodeType]


def _reduce_with_name(code: CodeType) -> tuple[Any, ...]:
    return _with_name, (*_reduce(code), code.co_filename)


def _with_name(make: Callable[..., CodeType], arguments: tuple[Any, ...], name: str) -> CodeType:
    return make(*arguments).replace(co_filename=name)


_PARAMETRIZE = "torch.nn.utils.parametrize"


def _reduce_parametrized(module: Any) -> tuple[Any, ...]:
    """Reduce a parametrized module (``weight_norm``), which torch refuses to pickle.

    torch makes a class for each such module.
    """
    torch, own = sys.modules[_PARAMETRIZE], type(module).__bases__[0]
    state = own.__getstate__(module) if hasattr(own, "__getstate__") else vars(module)
    return (
        _parametrized,
        (own, list(module.parametrizations), torch._inject_new_class, torch._inject_property),
        state,
    )


def _parametrized(
    own: Any, names: list[str], make_class: Callable[..., None], add: Callable[..., None]
) -> Any:
    module = own.__new__(own)
    make_class(module)
    for name in names:
        add(module, name)
    return module


def _reduce_cache(obj: Any) -> tuple[Any, ...] | None:
    """Reduce ``lru_cache`` and ``cached_property`` to their function; None for other objects.

    pickle looks up an ``lru_cache`` by a name that exists only in the script or cell, and a
    ``cached_property`` holds a lock before Python 3.12.
    """
    if type(obj) is functools.cached_property:
        return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
    if type(obj) is functools._lru_cache_wrapper and not _importable(obj):
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    return None


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _importable(obj: Any) -> bool:
    """Return whether other processes can import the object by its name."""
    if obj.__module__ in {"__main__", *cloudpickle.list_registry_pickle_by_value()}:
        return False
    found = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


_SHELL, _ENDS = "IPython.core.interactiveshell", ("ExitAutocall", "ZMQExitAutocall")


def no_shell() -> None:
    """Replace ``get_ipython`` in other processes, where there is no shell."""


def _replacement(obj: Any) -> Callable[..., Any] | None:
    """Return the replacement for an IPython name that holds the whole shell: ``get_ipython``,
    ``exit`` or ``quit``. None for other objects.
    """
    if type(obj).__name__ in _ENDS:
        return sys.exit
    named = isinstance(obj, MethodType) and obj.__name__ == "get_ipython"
    return (
        no_shell
        if named and isinstance(obj.__self__, sys.modules[_SHELL].InteractiveShell)
        else None
    )


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = ChainMap({CodeType: _reduce_with_name}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__module__ == _PARAMETRIZE and type(obj).__name__.startswith("Parametrized"):
            return _reduce_parametrized(obj)
        if _SHELL in sys.modules and (found := _replacement(obj)):
            return getattr, (sys.modules[found.__module__], found.__name__)
        if (reduced := _reduce_cache(obj)) is not None:
            return reduced
        return super().reducer_override(obj)


def dumps(value: Any, pickler: type[Pickler] = Pickler) -> bytes:
    """Pickle ``value`` for ``cloudpickle.loads`` in processes that can import this package."""
    main = sys.modules.get("__main__")
    if getattr(main, "__name__", "") == SPAWNED:  # no other process can import that module
        cloudpickle.register_pickle_by_value(main)
    file = io.BytesIO()
    pickler(file).dump(value)
    return file.getvalue()
