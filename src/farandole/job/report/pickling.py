"""Pickling of functions, arguments and results for other processes, and messages about values
that cannot be pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CoroutineType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from farandole.errors import SettingsError

_DEPTH = 8


def pack(value: Any, what: str) -> bytes:
    """Pickle ``value``. Raises SettingsError naming the part that cannot be pickled."""
    try:
        return _dumps(value)
    except Exception as error:  # a __reduce__ may raise anything
        raise SettingsError(_complaint(value, what, error)) from None


def pack_call(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> bytes:
    """Pickle a function with its arguments. Raises SettingsError naming the variable or
    argument that cannot be pickled.
    """
    try:
        return _dumps(call)
    except Exception as error:
        raise SettingsError(_complaint_of_call(call, error)) from None


def _complaint_of_call(call: tuple[Any, tuple[Any, ...], dict[str, Any]], error: Exception) -> str:
    function, args, kwargs = call
    what = (
        f"the function {getattr(function, '__qualname__', repr(function))!r} cannot be sent to the"
        " ranks"
    )
    given = [(f"argument {name!r}", part) for name, part in [*enumerate(args), *kwargs.items()]]
    used = (
        [(f"variable {name!r}", part) for name, part in _captured(function)]
        if isinstance(function, FunctionType)
        else []
    )
    for label, part in [*used, *given]:
        if not _picklable(part):
            path, culprit = _find(part, "", _DEPTH)
            inner = f" (there: {path})" if path else ""
            why = _refusal(culprit)
            if why:
                return f"{what}: the {label}{inner} is {why}"
            source = (
                "the function uses it from outside"
                if label.startswith("variable")
                else "it was passed to it"
            )
            return (
                f"{what}: the {label}{inner} is a {_name(type(culprit))}, which cannot be pickled"
                f" ({error}), and {source}. Create it inside the function, and pass plain data"
                " (numbers, arrays, state_dicts)"
            )
    return _complaint(function, what, error)


def _dumps(value: Any) -> bytes:
    from farandole.base.pickled import dumps

    if "pyspark" in sys.modules:
        from farandole.job.spark import objects

        return objects.dumps(value)
    return dumps(value)


def _refusal(value: Any) -> str:
    """Return why a Spark object cannot be pickled; empty for other objects."""
    if "pyspark" not in sys.modules:
        return ""
    from farandole.job.spark import objects

    return objects.refusal(value)


def unpack(data: bytes | bytearray) -> Any:
    import cloudpickle

    return cloudpickle.loads(data)


def _complaint(value: Any, what: str, error: Exception) -> str:
    path, culprit = _find(value, "", _DEPTH)
    if cure := _begun(culprit):
        return f"{what}: " + (f"its {path} is {cure}" if path else f"it is {cure}")
    why = _refusal(culprit) or (str(error) if isinstance(error, SettingsError) else "")
    if why:
        return f"{what}: " + (f"its {path} is {why}" if path else f"it holds {why}")
    where = (
        f": its {path} is a {_name(type(culprit))}, which cannot be pickled"
        if path
        else ": it cannot be pickled"
    )
    return (
        f"{what}{where} ({type(error).__name__}: {error}). Open files, locks, sockets, generators"
        " and handles of other libraries cannot be pickled: create them inside the function, or"
        " return plain data (numbers, arrays, state_dicts)"
    )


def _begun(value: Any) -> str:
    """Return advice for a call that has not run yet; empty for other values."""
    if isinstance(value, CoroutineType):
        value.close()  # otherwise Python would warn that it was never awaited
        return (
            "a coroutine that has not run: call asyncio.run(...) inside a function that is not"
            " async"
        )
    if isinstance(value, GeneratorType):
        return "a generator, which works only in its own process: use list(...) of it"
    return ""


def _find(value: Any, path: str, depth: int) -> tuple[str, Any]:
    """Return the innermost part that cannot be pickled, and its path."""
    if depth and not _refusal(value):
        for step, part in _parts(value):
            if not _picklable(part):
                return _find(part, f"{path}{step}" if path else step.lstrip("."), depth - 1)
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from ((f".variable {name!r}", part) for name, part in _captured(value))
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())


def _captured(function: Any) -> list[tuple[str, Any]]:
    """Return the variables that a function uses from outside, except modules."""
    import inspect  # imported here because it is only needed for values that cannot be pickled

    seen = inspect.getclosurevars(function)
    return [
        (name, part)
        for name, part in {**seen.nonlocals, **seen.globals}.items()
        if not isinstance(part, ModuleType)
    ]


def _picklable(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def weigh(call: tuple[Any, tuple[Any, ...], dict[str, Any]], what: str, size: int) -> str:
    """Return a warning that names the largest parts of a call that pickles to ``size`` bytes."""
    function, args, kwargs = call
    parts = [(f"argument {index}", part) for index, part in enumerate(args)]
    parts += [(f"argument {name!r}", part) for name, part in kwargs.items()]
    parts += [(step.lstrip("."), part) for step, part in _parts(function)]
    weights = sorted(
        ((_weight(part), name, part) for name, part in parts), key=lambda weighed: -weighed[0]
    )
    heavy = [
        f"{name} ({_name(type(part))}, {_size(weight)})"
        for weight, name, part in weights[:3]
        if weight >= size / 20
    ]
    return (
        f"{what} is {_size(size)} pickled, and every rank downloads it"
        + (f"; the largest parts are {', '.join(heavy)}" if heavy else "")
        + ". Load data and build models inside the function instead of capturing them"
    )


def _weight(value: Any) -> int:
    return len(_dumps(value))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
