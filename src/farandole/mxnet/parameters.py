"""Broadcasts of parameters from one rank to all, now or when they are initialized."""

from __future__ import annotations

import itertools
import types
from operator import itemgetter
from typing import Any

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from farandole.core.api.arrays import check_same_variables
from farandole.core.api.documented import documented
from farandole.core.api.ops import WORLD
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.mxnet.functions import broadcast_
from farandole.mxnet.parameter_names import canonical


@documented(
    "init",
    "set",
    "root",
    "ValueError: params is not a dictionary of dense parameters, or prefix is not a string; or,"
    " on all ranks, names differ between the ranks.",
    params=(
        "net.collect_params(), or a dictionary of gluon parameters or NDArrays. The same names on"
        " all ranks."
    ),
    prefix="part of the names in messages.",
    example="hvd.broadcast_parameters(net.collect_params(), root_rank=0)",
)
def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = WORLD
) -> None:
    """Overwrite parameters with ``root_rank``'s values.

    ``Module.get_params()`` returns two dictionaries of parameters. A parameter with unknown shape
    is broadcast when it is initialized, in the first forward pass; ranks may do so at different
    times.
    """
    if not isinstance(params, (dict, ParameterDict)):
        raise ValueError(
            f"invalid params of type: {type(params)}. Pass model.collect_params(), or a dict of"
            " NDArrays"
        )
    if prefix is not None and not isinstance(prefix, str):
        raise ValueError(f"prefix={prefix!r} must be a string")
    for value in params.values():
        check_dense(value)
    engine = context.engine(process_set)
    call = f"parameters.{engine.numbers.next()}.{prefix or ''}"
    if engine.size == 1:
        return
    names = canonical(str(key) for key in params)
    check_same_variables(sorted((name,) for name in names), process_set=process_set)
    for name, value in sorted(zip(names, params.values(), strict=True), key=itemgetter(0)):
        label = call + name
        if isinstance(value, Parameter):
            _broadcast_parameter(value, root_rank, label, process_set)
        else:
            broadcast_(value, root_rank, label, process_set=process_set)


def check_dense(value: Any) -> None:
    """Raise ValueError for a parameter with sparse values."""
    stype = getattr(value, "_stype", "default")
    if stype != "default":
        raise ValueError(
            f"parameter {value.name!r} has stype={stype!r}, whose values ranks cannot exchange."
            " Create it without stype=, and with grad_stype='row_sparse' to send only the rows of"
            " its gradient"
        )


def _broadcast_parameter(
    parameter: Any, root_rank: int, label: str, process_set: ProcessSet
) -> None:
    try:
        first, *others = parameter.list_data()
    except DeferredInitializationError:
        _broadcast_when_initialised(parameter, root_rank, label, process_set)
        return
    broadcast_(first, root_rank, label, process_set=process_set)
    context.add_parameters_broadcast(first.size)
    for other in others:  # the same parameter on another device of this rank
        first.copyto(other)


def _broadcast_when_initialised(
    parameter: Any, root_rank: int, label: str, process_set: ProcessSet
) -> None:
    times = itertools.count()  # it may be initialized again during the first broadcast

    def initialise(self: Any, *args: Any, **options: Any) -> None:
        type(self)._init_impl(self, *args, **options)
        number = next(times)
        _broadcast_parameter(self, root_rank, f"{label}.{number}" if number else label, process_set)

    parameter._init_impl = types.MethodType(initialise, parameter)
