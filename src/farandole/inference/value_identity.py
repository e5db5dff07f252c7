"""Digests of Python values, equal in all processes for equal values.

Pickles of equal values differ: the order of sets is different in each process, and user classes
have random ids.
"""

from __future__ import annotations

import dis
import hashlib
import io
import sys
import types
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np

from farandole.base.pickled import Pickler

_NO_PART = frozenset({"__dict__", "__weakref__", "__module__", "__doc__", "__slotnames__"})


def digest(*parts: bytes | str) -> str:
    """Return the digest of several parts, in order."""
    made = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        made.update(len(content).to_bytes(8, "little") + content)
    return made.hexdigest()[:24]


def parts_of_function(function: types.FunctionType) -> dict[str, str]:
    """Return digests of a user function: its code, and each variable that it uses."""
    values = _Values()
    used = {
        f"variable {name!r}": values.of(value) for name, value in sorted(_used(function).items())
    }
    defaults = values.of((function.__defaults__, function.__kwdefaults__))
    return {"code": digest(_code(function.__code__, values), defaults), **used}


def value_digest(value: Any, without: Iterable[Any] = ()) -> str:
    """Return the digest of a value: numbers, arrays, containers, functions, classes, and objects
    that can be pickled. ``without``: objects in it whose content is ignored.
    """
    return _Values(without).of(value)


class _Values:
    """Computes digests of values and nested values. An object that contains itself is represented
    by its nesting distance.
    """

    def __init__(self, without: Iterable[Any] = ()) -> None:
        # with the object, so that its id remains its own
        self._known: dict[int, tuple[Any, str]] = {id(each): (each, "") for each in without}
        self._path: list[int] = []

    def of(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return digest(type(value).__name__, value if isinstance(value, bytes) else repr(value))
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._path:
            return digest("ancestor", str(len(self._path) - self._path.index(id(value))))
        self._path.append(id(value))
        made = self._of_object(value)
        self._path.pop()
        self._known[id(value)] = (value, made)
        return made

    def _of_object(self, value: Any) -> str:
        kind = type(value)
        if kind in (list, tuple):
            return digest(kind.__name__, *(self.of(each) for each in value))
        if kind in (set, frozenset):
            return digest(kind.__name__, *sorted(self.of(each) for each in value))
        if kind is dict:
            return self._of_items("dict", value.items())
        if isinstance(value, np.ndarray) and value.dtype != object:
            return digest("array", str(value.dtype), repr(value.shape), value.tobytes())
        if isinstance(value, types.CodeType):
            return _code(value, self)
        if isinstance(value, types.ModuleType):
            return digest("module", value.__name__)
        if isinstance(value, io.BytesIO):
            return digest("bytes", value.getvalue())
        if _is_tensor(value):
            return self._of_tensor(value)
        if isinstance(value, type | types.FunctionType):
            return self._of_definition(value)
        return self._of_reduced(value)

    def _of_items(self, kind: str, items: Iterable[tuple[Any, Any]]) -> str:
        return digest(kind, *sorted(self.of(key) + self.of(value) for key, value in items))

    def _of_tensor(self, tensor: Any) -> str:
        plain = tensor.detach().cpu().contiguous()
        content = plain.reshape(-1).view(sys.modules["torch"].uint8).numpy().tobytes()
        return digest("tensor", str(tensor.dtype), repr(tuple(tensor.shape)), content)

    def _of_definition(self, value: Any) -> str:
        """Return the digest of a function or class: its name if other processes import it."""
        if cloudpickle.cloudpickle._should_pickle_by_reference(value):
            return digest("name", value.__module__, value.__qualname__)
        if isinstance(value, types.FunctionType):
            return self._of_items("function", parts_of_function_in(value, self).items())
        held = {name: each for name, each in vars(value).items() if name not in _NO_PART}
        bases = [self.of(base) for base in value.__bases__]
        return digest("class", value.__name__, *bases, self._of_items("dict", held.items()))

    def _of_reduced(self, value: Any) -> str:
        reduced = _reduced(value)
        if isinstance(reduced, str):
            return digest("name", type(value).__module__, reduced)
        function, arguments, *rest = reduced
        state, items, pairs = (*rest, None, None, None)[:3]
        return digest(
            type(value).__name__,
            self.of(function),
            self.of(arguments),
            self.of(state),
            *(self.of(each) for each in items or ()),
            self._of_items("items", pairs or ()),
        )


def parts_of_function_in(function: types.FunctionType, values: _Values) -> dict[str, Any]:
    """Return the parts of a function: its code, its defaults and the variables it uses."""
    return {
        "code": function.__code__,
        "defaults": (function.__defaults__, function.__kwdefaults__),
        **{f"variable {name}": value for name, value in _used(function).items()},
    }


def _code(code: types.CodeType, values: _Values) -> str:
    """Return the digest of code without its file and line numbers."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return digest(
        "code", code.co_code, values.of(names), values.of(counts), values.of(code.co_consts)
    )


def _used(function: types.FunctionType) -> dict[str, Any]:
    """Return the outer variables that a function uses, by name."""
    names = _global_names(function.__code__)
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            found[name] = None
    return found


def _global_names(code: types.CodeType) -> set[str]:
    names = {
        str(each.argval)
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided


def _reduced(value: Any) -> Any:
    """Reduce an object in the same way as the pickler that sends it."""
    pickler = Pickler(io.BytesIO())
    reduced = pickler.reducer_override(value)
    if reduced is not NotImplemented:
        return reduced
    reduce = pickler.dispatch_table.get(type(value))
    return reduce(value) if reduce is not None else value.__reduce_ex__(4)
