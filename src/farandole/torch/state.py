"""Broadcasts of parameters and optimizer state, so that all ranks begin with equal values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from farandole.base.types import Kind, Request
from farandole.core.api.arrays import check_same_variables
from farandole.core.api.documented import documented
from farandole.core.api.objects import broadcast_object
from farandole.core.api.ops import WORLD, place_of
from farandole.core.api.trees import put_together, take_apart
from farandole.core.engine import Entry
from farandole.job import context
from farandole.job.context import ProcessSet
from farandole.torch.binding import as_real
from farandole.torch.checks import none_stepped
from farandole.torch.functions import anywhere
from farandole.torch.validation import check_optimizer
from farandole.torch.weights import living

# model.state_dict(), model.named_parameters(), ...; values that are not tensors are skipped
Named = Mapping[str, Any] | Iterable[tuple[str, torch.Tensor] | torch.Tensor]

EXTRA_STATE = "_extra_state"  # the end of the names of entries that need not be tensors


@documented(
    "init",
    "disagree",
    "set",
    "root",
    "ValueError: params is neither; or, on all ranks, names differ between the ranks.",
    params=(
        "model.state_dict(), or (name, tensor) pairs. The same names, shapes and types on all"
        " ranks."
    ),
    example="hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
)
def broadcast_parameters(params: Named, root_rank: int, process_set: ProcessSet = WORLD) -> None:
    """Overwrite tensors with ``root_rank``'s. ``params``: ``model.state_dict()``, or (name, tensor)
    pairs.
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(
        params, (str, torch.Tensor, torch.nn.Module)
    ):
        named = [
            pair if isinstance(pair, tuple) else (f"{i}", pair) for i, pair in enumerate(params)
        ]
    else:
        raise ValueError(
            f"invalid params of type: {type(params)}. Pass model.state_dict() or"
            " model.named_parameters(), use broadcast_ for a single tensor, or broadcast_object"
            " for any other object"
        )
    for name, value in named:  # modules may keep any object as extra state
        if isinstance(value, (Mapping, torch.nn.Module)) and not str(name).endswith(EXTRA_STATE):
            raise ValueError(
                f"invalid params: {name!r} is a {type(value).__name__}, not a tensor. Pass each"
                " state_dict in a separate call: broadcast_parameters(checkpoint['model'],"
                " root_rank=0)"
            )
    tensors = [(name, tensor) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    extra = [(name, value) for name, value in named if str(name).endswith(EXTRA_STATE)]
    known = {name for name, _ in tensors} | {name for name, _ in extra}
    # by name, in any order
    check_same_variables(sorted((str(name),) for name in known), process_set=process_set)
    several = context.engine(process_set).size > 1
    if extra and several and context.settings().check != "off":
        from farandole.torch.extra_state import compare

        compare(extra, root_rank, process_set)
    _broadcast(tensors, root_rank, process_set)
    if several:
        context.add_parameters_broadcast(
            sum(tensor.numel() for _, tensor in tensors), none_stepped()
        )
        places = {tensor.data_ptr() for _, tensor in tensors if tensor.numel()}
        for state in tuple(living):
            state.overwritten(places)


@documented(
    "init",
    "disagree",
    "set",
    "root",
    optimizer="any torch optimizer, distributed or not.",
    model="has no effect; accepted for Horovod's programs.",
    example="hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
)
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = WORLD,
) -> None:
    """Broadcast ``root_rank``'s optimizer state and options (learning rate, momentum, ...) to all
    ranks.

    Other ranks may have a different state, or none. Tensors that fit are overwritten in place. The
    state of a distributed optimizer's strategy is included if the ranks share it (else it begins
    again on all), and so is its number of steps. As in Horovod, an optimizer without state gets
    zero gradients.
    """
    check_optimizer("broadcast_optimizer_state", optimizer)
    fresh = not optimizer.state and not isinstance(optimizer, torch.optim.SparseAdam)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = getattr(optimizer, "_farandole", None)
    described = {
        **_described(optimizer, parameters),
        "strategy": own.shared() if own is not None else {},
    }
    tree, tensors = take_apart(described, torch.is_tensor)
    homes = _homes(optimizer, parameters)
    forms = [
        (tuple(tensor.shape), tensor.dtype, tensor.is_cpu, homes.get(id(tensor)))
        for tensor in tensors
    ]
    root_tree, root_forms = broadcast_object(
        (tree, forms), root_rank, "optimizer_state", process_set
    )
    if context.rank() != root_rank:
        if tree != root_tree or forms != root_forms:
            tensors = [_room(parameters, *form) for form in root_forms]
        _adopt(optimizer, parameters, put_together(root_tree, tensors))
    _broadcast(
        [(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)],
        root_rank,
        process_set,
    )
    if own is not None:
        own.share(put_together(root_tree, tensors)["strategy"])
    for parameter in parameters:
        if fresh and parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _described(optimizer: torch.optim.Optimizer, parameters: list[Any]) -> dict[str, Any]:
    """Return options and state, with indexes in place of parameters."""
    return {
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
        "state": {
            index: optimizer.state[parameter]
            for index, parameter in enumerate(parameters)
            if parameter in optimizer.state
        },
    }


def _homes(optimizer: torch.optim.Optimizer, parameters: list[Any]) -> dict[int, int]:
    """Return, by the id of a state tensor, the index of the parameter that it belongs to."""
    homes = {}
    for index, parameter in enumerate(parameters):
        _, tensors = take_apart(optimizer.state.get(parameter, {}), torch.is_tensor)
        homes.update({id(tensor): index for tensor in tensors})
    return homes


def _room(
    parameters: list[Any], shape: tuple[int, ...], dtype: Any, on_cpu: bool, home: int | None
) -> Any:
    """Return an empty tensor for the state of parameter ``home``. It has the parameter's memory
    layout (such as channels_last), which fused optimizers require.
    """
    parameter = parameters[home or 0]
    device = "cpu" if on_cpu else parameter.device
    if home is not None and shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, device=device)
    return torch.zeros(shape, dtype=dtype, device=device)


def _adopt(optimizer: torch.optim.Optimizer, parameters: list[Any], tree: dict[str, Any]) -> None:
    for group, options in zip(optimizer.param_groups, tree["groups"], strict=True):
        for key in [key for key in group if key != "params" and key not in options]:
            del group[key]
        group.update(options)
    for index, parameter in enumerate(parameters):
        state = tree["state"].get(index)
        if state is None:
            optimizer.state.pop(parameter, None)
        else:
            optimizer.state[parameter] = state


def _broadcast(named: list[tuple[str, Any]], root: int, process_set: ProcessSet) -> None:
    """Broadcast all tensors in place, as one unit."""
    engine = context.engine(process_set)
    root = place_of(root, process_set)
    if not named or (engine.size == 1 and root == 0):
        return
    serial = engine.numbers.next()
    entries = []
    named = [(name, as_real(tensor)) for name, tensor in named]
    for name, tensor in named:
        buffer = anywhere.buffer(tensor)
        request = Request(
            f"broadcast.{name}",
            Kind.BROADCAST,
            buffer.dtype,
            tuple(tensor.shape),
            root=root,
            group="broadcast.state",
            group_size=len(named),
            device=buffer.device,
        )
        entries.append(Entry(request, buffer, serial))
    engine.run(entries)
    for (_, tensor), entry in zip(named, entries, strict=True):
        anywhere.write_back(tensor, entry.buffer)
