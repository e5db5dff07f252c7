"""Types of predictions, in Spark's notation, and conversion of a model's arrays to Arrow arrays of
such a type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from farandole.base.optional import require
from farandole.data.parquet.numeric_cast import cast
from farandole.errors import DataError, SettingsError, counted, did_you_mean

if TYPE_CHECKING:
    from farandole.base.types import Array

_PURPOSE = "inference"
# Names of types in Spark, numpy and Arrow.
_NUMBERS = {
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
}
_SPARK = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "float16": "float",
    "float32": "float",
    "float64": "double",
}
DEFAULT = "array<float>"  # if neither the user nor the model declares a type
_OTHERS = ("boolean", "string", "binary")
# decimal(10,2) is one token
_TOKENS = re.compile(r"\s*(`(?:[^`]|``)*`|[\w.]+(?:\([\d, ]*\))?|[<>:,])")
EXAMPLES = "'float', 'array<float>', 'string' or 'struct<label:int,scores:array<float>>'"
_MOST = (1 << 31) - 1  # numbers of a column of arrays, whose offsets are int32


class ShapeError(DataError):
    """A mismatch between a model's results and their type, caused by the model rather than single
    rows.
    """


class Type(NamedTuple):
    """A type. ``kind``: number, boolean, string, binary, array or struct. ``dtype``: the dtype of
    numbers. ``items``: the type of an array's elements. ``fields``: the names and types of a
    struct's fields.
    """

    kind: str
    dtype: str = ""
    items: Type | None = None
    fields: tuple[tuple[str, Type], ...] = ()

    def __str__(self) -> str:
        if self.kind == "array":
            return f"array<{self.items}>"
        if self.kind == "struct":
            return f"struct<{','.join(f'`{name}`:{kind}' for name, kind in self.fields)}>"
        return _SPARK[self.dtype] if self.kind == "number" else self.kind


def parse(text: Any) -> Type:
    """Parse Spark's DDL ("array<float>", "a int, b string") or a Spark DataType. Raises
    SettingsError for others.
    """
    words = (
        text
        if isinstance(text, str)
        else text.simpleString()
        if hasattr(text, "simpleString")
        else None
    )
    if words is None:
        raise SettingsError(
            f"returns={text!r} is a {type(text).__name__}. Use a type as written by Spark,"
            f" {EXAMPLES}"
        )
    tokens = _tokens(words)
    try:
        kind, rest = _type(tokens) if len(tokens) < 2 or tokens[1] in "<>," else _fields(tokens, "")
    except IndexError:
        raise SettingsError(
            f"returns={words!r} is incomplete. Use a type as in {EXAMPLES}"
        ) from None
    if rest:
        raise SettingsError(
            f"returns={words!r}: {''.join(rest)!r} follows the type. Use a type as in {EXAMPLES}"
        )
    return kind


def of(shape: Sequence[int | None], dtype: Any) -> Type:
    """Return the type of one row's array. An array of one number becomes a number."""
    name = np.dtype(dtype).name
    kind = (
        Type("number", _NUMBERS[_SPARK.get(name, "float")]) if name != "bool" else Type("boolean")
    )
    if np.dtype(dtype).kind in "UO":
        kind = Type("string")
    for _ in () if tuple(shape) == (1,) else shape:
        kind = Type("array", items=kind)
    return kind


def _tokens(words: str) -> list[str]:
    tokens, position = [], 0
    while words[position:].strip():
        match = _TOKENS.match(words, position)
        if match is None:
            raise SettingsError(
                f"returns={words!r}: {words[position:].strip()!r} is not a type. Use a type as in"
                f" {EXAMPLES}"
            )
        tokens.append(match[1])
        position = match.end()
    return tokens


def _type(tokens: list[str]) -> tuple[Type, list[str]]:
    word, rest = tokens[0].lower(), tokens[1:]
    if word == "array":
        _expect(rest, "<")
        items, rest = _type(rest[1:])
        _expect(rest, ">")
        return Type("array", items=items), rest[1:]
    if word == "struct":
        _expect(rest, "<")
        fields, rest = _fields(rest[1:], ">")
        return fields, rest[1:]
    if word in _NUMBERS:
        return Type("number", _NUMBERS[word]), rest
    if word in _OTHERS:
        return Type(word), rest
    known = [*_NUMBERS, *_OTHERS, "array", "struct"]
    raise SettingsError(
        f"returns: {tokens[0]!r} is not a type of predictions; known:"
        f" {', '.join(known)}{did_you_mean(word, known)}"
    )


def _fields(tokens: list[str], end: str) -> tuple[Type, list[str]]:
    fields = []
    while True:
        name, rest = tokens[0].strip("`").replace("``", "`"), tokens[1:]
        kind, tokens = _type(rest[1:] if rest[0] == ":" else rest)
        fields.append((name, kind))
        if not tokens or tokens[0] == end:
            return Type("struct", fields=tuple(fields)), tokens
        _expect(tokens, ",")
        tokens = tokens[1:]


def _expect(tokens: list[str], wanted: str) -> None:
    if tokens[0] != wanted:
        raise SettingsError(
            f"returns: expected {wanted!r}, not {tokens[0]!r}. Use a type as in {EXAMPLES}"
        )


@functools.lru_cache
def arrow_type(kind: Type) -> Any:
    """Return pyarrow's type, with Spark's names of fields."""
    pa = require("pyarrow", _PURPOSE)
    if kind.kind == "array":
        assert kind.items is not None
        return pa.list_(pa.field("element", arrow_type(kind.items)))
    if kind.kind == "struct":
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in kind.fields])
    if kind.kind == "number":
        return pa.from_numpy_dtype(np.dtype(kind.dtype))
    return {"boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary()}[kind.kind]


def to_arrow(output: Any, kind: Type, rows: int, name: str = "the model") -> Any:
    """Convert a model's results for ``rows`` rows to an Arrow array.

    ``output``: an array ``[rows, ...]``, a list of one value per row, or several of them as a dict
    or tuple for a struct. Raises ShapeError for a wrong number of rows or outputs, or a wrong shape
    or kind of number, and DataError for values that do not fit the type. The array is a copy,
    because a model may reuse its buffer.
    """
    pa = require("pyarrow", _PURPOSE)
    if kind.kind == "struct":
        parts = [
            to_arrow(each, inner, rows, f"{name}'s {field!r}")
            for each, field, inner in _parts(output, kind, name)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(arrow_type(kind)))
    output = _single(output, name)
    if len(output) != rows:
        raise ShapeError(
            f"{name} returned {counted(len(output), 'row')} for {rows}, but must return one for"
            " each"
        )
    plain = (
        isinstance(output, np.ndarray) and output.dtype != object and not np.ma.is_masked(output)
    )
    if kind.kind in ("string", "binary") or not plain:  # masked values become null
        return _from_values(output, kind, name)
    return _from_numbers(output, kind, name)


def _parts(output: Any, kind: Type, name: str) -> list[tuple[Any, str, Type]]:
    names = [field for field, _ in kind.fields]
    if isinstance(output, Mapping):
        if missing := [field for field in names if field not in output]:
            raise ShapeError(
                f"{name} returned {', '.join(map(str, output))}, but not {missing[0]!r}, which"
                " returns= names"
            )
        return [(output[field], field, inner) for field, inner in kind.fields]
    if (
        isinstance(output, (tuple, list))
        and len(output) == len(names)
        and not _is_rows(output, kind)
    ):
        return [
            (each, field, inner) for each, (field, inner) in zip(output, kind.fields, strict=True)
        ]
    if len(names) == 1:
        return [(output, *kind.fields[0])]
    what = (
        f"{len(output)} outputs"
        if isinstance(output, (tuple, list))
        else f"one {type(output).__name__}"
    )
    raise ShapeError(
        f"{name} returned {what}, but returns='{kind}' names {len(names)}. Return a dict or tuple"
        " of these"
    )


def _is_rows(output: Any, kind: Type) -> bool:
    """Return whether a list holds one value per row, rather than the output for the only field."""
    if not isinstance(output, list) or len(output) != 1:
        return False
    depth, inner = 0, kind.fields[0][1]
    while inner.items is not None:
        depth, inner = depth + 1, inner.items
    return _depth(output[0]) <= depth


def _depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + (_depth(value[0]) if value else 0)
    return int(getattr(value, "ndim", 0))


def _single(output: Any, name: str) -> Any:
    if isinstance(output, Mapping) or (isinstance(output, tuple) and all(map(_is_array, output))):
        if len(output) == 1:
            return _single(
                next(iter(output.values() if isinstance(output, Mapping) else output)), name
            )
        what = (
            ", ".join(map(str, output)) if isinstance(output, Mapping) else f"{len(output)} arrays"
        )
        raise ShapeError(
            f"{name} returned several outputs ({what}). Declare them with"
            " returns='struct<name:type,...>'"
        )
    if not hasattr(output, "__len__") or getattr(output, "shape", None) == ():
        raise ShapeError(
            f"{name} returned a {type(output).__name__}, {output!r:.80}, but must return a value"
            " for each row"
        )
    return output


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def _from_values(output: Any, kind: Type, name: str) -> Any:
    pa = require("pyarrow", _PURPOSE)
    # one value for each row
    if kind.items is None and getattr(output, "ndim", 1) == 2 and output.shape[1] == 1:
        output = output[:, 0]
    try:
        return pa.array(
            output.tolist() if hasattr(output, "tolist") else list(output), arrow_type(kind)
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{name} returned values that are not of type '{kind}': {error}. Declare the type with"
            " returns="
        ) from error


def _from_numbers(output: Array, kind: Type, name: str) -> Any:
    depth, inner = 0, kind
    while inner.kind == "array":
        assert inner.items is not None
        depth, inner = depth + 1, inner.items
    if output.ndim == depth + 2 and output.shape[-1] == 1:  # a column of one number per row
        output = output[..., 0]
    if output.ndim != depth + 1 or inner.kind not in ("number", "boolean"):
        fitting = of(output.shape[1:], output.dtype)
        raise ShapeError(
            f"{name} returned {output.dtype.name} of shape {output.shape}, rows first, which is"
            f" not a column of '{kind}'. Use returns='{fitting}', or another shape"
        )
    if depth and output.size > _MOST:
        raise DataError(
            f"{name} gave {output.size} numbers for {len(output)} rows. A batch of a column of"
            f" '{kind}' can have at most {_MOST}: lower batch_size="
        )
    return _nested(_cast(output, inner, name), kind)


def _nested(output: Array, kind: Type) -> Any:
    pa = require("pyarrow", _PURPOSE)
    if kind.kind != "array":
        return pa.array(output, arrow_type(kind))
    assert kind.items is not None
    rows, length = output.shape[:2]
    inner = _nested(output.reshape(rows * length, *output.shape[2:]), kind.items)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * np.int32(length))
    return pa.ListArray.from_arrays(offsets, inner, type=arrow_type(kind))


def _cast(output: Array, kind: Type, name: str) -> Array:
    wanted = np.dtype(kind.dtype or "bool")
    if output.dtype == wanted:
        return np.array(output, order="C")
    if not np.can_cast(output.dtype, wanted, "same_kind"):
        raise ShapeError(
            f"{name} returned {output.dtype.name}, not '{kind}'. Use"
            f" returns='{of((), output.dtype)}', or convert it in the model"
        )
    converted, misfit = cast(output, wanted)
    # ids and counts must not be rounded silently
    if misfit < 0 and output.dtype.kind in "iu" and wanted.kind == "f":
        same = converted.astype(output.dtype) == output
        misfit = -1 if same.all() else int(np.argmin(same))
    if misfit >= 0:
        raise DataError(
            f"{name} returned {output.reshape(-1)[misfit]} of {output.dtype.name}, which '{kind}'"
            f" cannot hold. Use returns='{of((), output.dtype)}', or another wider type"
        )
    return np.ascontiguousarray(converted)
