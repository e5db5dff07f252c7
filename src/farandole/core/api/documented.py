"""Completes docstrings of public functions from one glossary: an argument has the same meaning in
every framework.

The specifics of a function are in its docstring; shared arguments and errors are added here.
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
    "tensors": "this rank's tensors: as many on all ranks, in the same order.",
    "average": "deprecated. True is op=Average, False is op=Sum.",
    "name": (
        "ties the calls of the ranks together, which may then come in any order. Calls without a"
        " name are counted, and must come in the same order on all ranks."
    ),
    "op": (
        "Average (the default), Sum, Min, Max, Product or Adasum. Integers are averaged towards"
        " zero; bool has Min and Max; Adasum is for floats."
    ),
    "compression": (
        "how tensors travel: Compression.none (the default), .fp16 (half the bytes for float32), or"
        " a Compressor of your own."
    ),
    "codec": (
        "adds up gradients by sending less, as 'int8' or 'topk:0.01': see docs/strategies.md. None:"
        " what --codec says."
    ),
    "prescale_factor": "a number by which tensors are multiplied before they are reduced.",
    "postscale_factor": "a number by which results are multiplied.",
    "process_set": "the ranks that take part: a registered ProcessSet. All ranks by default.",
    "root_rank": "whose value all get: a rank among all, also for a process set.",
    "splits": (
        "how many rows go to each rank: as many whole numbers as ranks, with the number of rows as"
        " their sum. Without it, rows are dealt evenly."
    ),
    "handle": "an int, from a function whose name ends in _async.",
    "device": "has no effect; Horovod's programs give it.",
    "priority": (
        "which of several operations MXNet should start first: the one with the highest number."
    ),
    "ignore_name_scope": "in a graph: names are not prefixed with the scope they are made in.",
    "device_dense": "has no effect; Horovod's programs give it.",
    "device_sparse": "has no effect; Horovod's programs give it.",
    "obj": "anything that cloudpickle can send.",
    "num_groups": "deprecated: see groups.",
    "groups": (
        "which gradients travel together: lists of parameters, or a number of groups to make of"
        " all."
    ),
    "sparse_as_dense": "exchange sparse gradients as dense ones.",
    "backward_passes_per_step": (
        "add up the gradients of so many backward passes, then exchange them once."
    ),
    "average_aggregated_gradients": "divide what was added up over several passes by their number.",
    "gradient_predivide_factor": (
        "divide gradients by it before they are summed, and by size / factor afterwards "
        "(with op=Average). Keeps sums of float16 in range."
    ),
    "scale_local_gradients": "divide the gradients of local variables by the number of ranks.",
}

RAISES = {
    "init": "NotInitializedError: before init().",
    "disagree": (
        "HorovodInternalError: ranks disagree (shape, type, operation), which all of them are told;"
        " or a rank was lost."
    ),
    "set": "RequestError: this rank is not in the process set, or the set is not registered.",
    "type": (
        "ValueError: an element type or layout that cannot travel. TypeError: no tensor at all."
    ),
    "op": "ValueError: op is no reduction, or both op and average are given.",
    "rows": "RequestError: a tensor without dimensions, which has no rows.",
    "root": "RequestError: root_rank is not a rank of the set.",
    "splits": "RequestError: splits do not fit the number of ranks or rows.",
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
    """Return a decorator that adopts the signature and docstring of ``other``, an equivalent
    function for users.

    A repeated first line in the decorated function serves editors that do not run the program.
    """

    def take_over(function: F) -> F:
        vars(function)["__wrapped__"] = other
        function.__doc__ = other.__doc__
        return function

    return take_over


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"    {line}" for line in lines)])
