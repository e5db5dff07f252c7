"""Detection of numbers of epochs that contradict the program's intention."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from farandole.checks.catalogue import EPOCHS_DIVIDED, IDLE_EARLY_STOPPING
from farandole.checks.finding import Finding
from farandole.checks.program_line import program_line

_CURE = "model.fit(*hvd.shard(x, y), ...)"


def idle_early_stopping(callbacks: Sequence[Any], epochs: int) -> Finding | None:
    """Return the finding for an ``EarlyStopping`` that cannot stop a training of ``epochs`` epochs,
    or None. It stops after ``patience`` epochs without improvement on an earlier epoch.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.EarlyStopping):
            first = int(getattr(callback, "start_from_epoch", 0) or 0)
            if 1 < epochs <= callback.patience + first:
                return IDLE_EARLY_STOPPING.finding(
                    f"EarlyStopping(patience={callback.patience}) cannot stop a training of"
                    f" {epochs} epochs: it needs {callback.patience + first + 1} or more. Lower the"
                    " patience, or train more epochs on each rank's part of the data",
                    where=f"{callback.patience} {epochs}",
                )
    return None


def epochs_divided(size: int, epochs: int) -> Finding | None:
    """Return the finding if the program that calls ``fit`` divides its epochs by ``size()``, or
    None. Call it when all ``size`` ranks pass the same data.
    """
    file, _, number = program_line().rpartition(":")
    line = _division(file, int(number or 0))
    if line is None:
        return None
    place = f"{file}:{line}"
    return EPOCHS_DIVIDED.finding(
        f"{place} divides the epochs by size(), but all {size} ranks read all data: each rank"
        f" repeats the same {epochs} epochs. Give each rank its part, {_CURE}, and train all"
        " epochs",
        cure=_CURE,
        where=place,
    )


def _division(file: str, call: int) -> int | None:
    """Return the first line that divides epochs by ``size()``, at the module level of a program or
    in the function that calls ``fit`` in line ``call``.
    """
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for value in _epochs(tree, call):
        for each in ast.walk(value):
            if (
                isinstance(each, ast.BinOp)
                and isinstance(each.op, (ast.Div, ast.FloorDiv))
                and _calls_size(each.right)
            ):
                return each.lineno
    return None


def _epochs(tree: ast.AST, call: int) -> Iterator[ast.AST]:
    """Yield the values of variables and arguments with "epoch" in their names."""
    for each in _visible(tree, call):
        if isinstance(each, ast.Assign):
            names = [getattr(target, "id", getattr(target, "attr", "")) for target in each.targets]
        elif isinstance(each, ast.keyword):
            names = [each.arg or ""]
        else:
            continue
        if any("epoch" in name.lower() for name in names):
            yield each.value


def _visible(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the nodes outside of functions and in those around ``line``."""
    for each in ast.iter_child_nodes(tree):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and not (
            each.lineno <= line <= (each.end_lineno or line)
        ):
            continue
        yield each
        yield from _visible(each, line)


def _calls_size(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", "")) == "size"
