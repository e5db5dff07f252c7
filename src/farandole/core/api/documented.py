"""Completes docstrings of public functions from a glossary: an argument has the same meaning in
every framework.

Details of one function are in its docstring; shared arguments and errors are added here.
``tests/test_api_pages.py`` generates docs/api/ from the result, and checks that every argument is
described.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ARGUMENTS = {
    "tensor": "this rank's tensor.",
    "tensors": "this rank's tensors, the same number in the same order on all ranks.",
    "average": "deprecated. True is op=Average, False is op=Sum.",
    "name": (
        "identifies the call on all ranks, so that named calls may come in any order. Unnamed"
        " calls are numbered and must come in the same order on all ranks."
    ),
    "op": (
        "Average (the default), Sum, Min, Max, Product or Adasum. Averages of integers are"
        " rounded towards zero; bool supports Min and Max only; Adasum needs floating point."
    ),
    "compression": (
        "compression of tensors in transit: Compression.none (the default), .fp16 (half the bytes"
        " for float32), or your own Compressor."
    ),
    "codec": (
        "codec that compresses gradients before they are summed, such as 'int8' or 'topk:0.01':"
        " see docs/strategies.md. None: the value of --codec."
    ),
    "prescale_factor": "factor applied to tensors before the reduction.",
    "postscale_factor": "factor applied to results.",
    "process_set": "ranks that take part: a registered ProcessSet. All ranks by default.",
    "root_rank": (
        "rank whose value all ranks receive: its number among all ranks, also for a process set."
    ),
    "splits": (
        "number of rows for each rank: one whole number per rank, with the number of rows as"
        " their sum. Without it, rows are split evenly."
    ),
    "handle": "an int, returned by a function whose name ends in _async.",
    "device": "no effect; accepted for Horovod's programs.",
    "priority": (
        "priority among operations that MXNet could start first; the highest number wins."
    ),
    "ignore_name_scope": "in a graph: do not prefix names with the enclosing name scope.",
    "device_dense": "no effect; accepted for Horovod's programs.",
    "device_sparse": "no effect; accepted for Horovod's programs.",
    "obj": "an object that cloudpickle can serialize.",
    "num_groups": "deprecated: see groups.",
    "groups": (
        "gradients to exchange together: lists of parameters, or a number of groups to divide all"
        " gradients into."
    ),
    "sparse_as_dense": "exchange sparse gradients as dense ones.",
    "backward_passes_per_step": (
        "number of backward passes whose gradients are summed before one exchange."
    ),
    "average_aggregated_gradients": "divide the sum over several passes by the number of passes.",
    "gradient_predivide_factor": (
        "divide gradients by this factor before they are summed, and by size / factor afterwards"
        " (with op=Average). Keeps sums of float16 in range."
    ),
    "scale_local_gradients": "divide the gradients of local variables by the number of ranks.",
}

RAISES = {
    "init": "NotInitializedError: before init().",
    "disagree": (
        "HorovodInternalError: on every rank, if ranks disagree (shape, type, operation) or a"
        " rank was lost."
    ),
    "set": "RequestError: this rank is not in the process set, or the set is not registered.",
    "type": "ValueError: an unsupported element type or layout. TypeError: not a tensor.",
    "op": "ValueError: op is not a reduction, or both op and average are given.",
    "rows": "RequestError: a tensor without dimensions, and so without rows.",
    "root": "RequestError: root_rank is not a rank of the set.",
    "splits": "RequestError: splits do not match the number of ranks or rows.",
    "failed": "HorovodInternalError: the collective failed.",
}
_COLLECTIVE = ("init", "disagree", "set", "type")


def documented(*raises: str, example: str = "", **arguments: str) -> Callable[[F], F]:
    """Return a decorator that completes a docstring with every argument, the errors and an example.

    ``arguments``: descriptions that override or extend the glossary; ``raises``: keys of
    ``RAISES``, or texts.
    """

    def complete(function: F) -> F:
        if function.__doc__ is None:  # with python -OO
            return function
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        described = {
            name: arguments.get(name) or ARGUMENTS.get(name)
            for name in names
            if name not in ("self", "cls")
        }
        # *args, **options
        described |= {name: text for name, text in arguments.items() if name not in described}
        parts = [cleandoc(function.__doc__)]
        if described:
            parts.append(
                _section(
                    "Arguments", [f"{name}: {text}" for name, text in described.items() if text]
                )
            )
        if raises:
            parts.append(_section("Raises", [RAISES.get(error, error) for error in raises]))
        if example:
            parts.append(_section("Example", cleandoc(example).splitlines()))
        function.__doc__ = "\n\n".join(parts)
        return function

    return complete


def collective(*raises: str, example: str = "", **arguments: str) -> Callable[[F], F]:
    """Return the decorator ``documented`` for functions that all ranks must call."""
    return documented(*_COLLECTIVE, *raises, example=example, **arguments)


def like(other: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that copies the signature and docstring of ``other``, an equivalent
    function for users.

    Repeat the first line in the decorated function for editors, which do not run the program.
    """

    def take_over(function: F) -> F:
        vars(function)["__wrapped__"] = other
        function.__doc__ = other.__doc__
        return function

    return take_over


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"    {line}" for line in lines)])
