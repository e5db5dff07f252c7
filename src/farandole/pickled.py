"""cloudpickle that keeps the file names of functions: from version 3.1.3 on it leaves them out, and neither the line of
a traceback nor that of a collective can be told."""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle

_reduce: Callable[[CodeType], tuple[Any, ...]] = cloudpickle.Pickler.dispatch_table[CodeType]


def _reduce_with_name(code: CodeType) -> tuple[Any, ...]:
    return _with_name, (*_reduce(code), code.co_filename)


def _with_name(make: Callable[..., CodeType], arguments: tuple[Any, ...], name: str) -> CodeType:
    return make(*arguments).replace(co_filename=name)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = ChainMap({CodeType: _reduce_with_name}, cloudpickle.Pickler.dispatch_table)


def dumps(value: Any, pickler: type[Pickler] = Pickler) -> bytes:
    """``value`` as bytes, for ``cloudpickle.loads`` where this package can be imported."""
    file = io.BytesIO()
    pickler(file).dump(value)
    return file.getvalue()
