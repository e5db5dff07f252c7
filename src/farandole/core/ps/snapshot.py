"""The state of a parameter server, as a message with arrays, from which a new replica starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.core.ps.centre import Centre, OptimizerState
from farandole.core.ps.group import CentreGroup, Failure
from farandole.core.ps.wire import Message
from farandole.errors import WireError

if TYPE_CHECKING:
    from farandole.base.types import Array

Name = tuple[str, str]


def taken(
    groups: Mapping[Name, CentreGroup], gone: Iterable[tuple[str, int]]
) -> tuple[Message, list[Array]]:
    """Return the message and its arrays, which are not copied.

    ``groups``: the groups by name; ``gone``: the ranks that have ended, by session.
    """
    names = {id(group): name for name, group in groups.items()}
    arrays: list[Array] = []
    described = []
    for name, group in groups.items():
        later, seconds = group.moved_to
        described.append(
            {
                "name": name,
                "facts": group.facts,
                "clocks": group.clocks.to_facts(),
                "known": sorted(group.known),
                "resumed": group.resumed,
                "failure": group.failure,
                "later": None if later is None else names[id(later)],
                "seconds": 0.0 if later is None else seconds,
                "centre": _centre(group.centre, arrays),
                "commits": [
                    [number, _state(state, arrays)] for number, state in group.commits.items()
                ],
            }
        )
    kinds = [(array.dtype.str, array.size) for array in arrays]
    return {"do": "state", "groups": described, "gone": sorted(gone), "arrays": kinds}, arrays


def memory(message: Message) -> list[Array]:
    """Return new memory for the arrays of a message. Raises WireError if it is malformed."""
    try:
        return [np.empty(int(count), dtype=str(kind)) for kind, count in message["arrays"]]
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"the state of a parameter server is malformed: {error!r}") from None


def restored(
    message: Message, arrays: Sequence[Array]
) -> tuple[dict[Name, CentreGroup], set[tuple[str, int]]]:
    """Return the groups and the ranks that have ended. The arrays belong to the groups afterwards.
    Raises WireError if the message is malformed.
    """
    try:
        left = iter(arrays)
        groups = {tuple(each["name"]): _group(each, left) for each in message["groups"]}
        for each in message["groups"]:
            if each["later"] is not None:
                later = groups[tuple(each["later"])]
                groups[tuple(each["name"])].moved_to = (later, float(each["seconds"]))
        return groups, {(str(scope), int(rank)) for scope, rank in message["gone"]}
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise WireError(f"the state of a parameter server is malformed: {error!r}") from None


def _centre(centre: Centre | None, arrays: list[Array]) -> Any:
    if centre is None:
        return None
    held, summed, collected = centre.collected()
    arrays += [*centre.values, *collected]
    counts = len(centre.values), len(collected)
    return {
        "counts": counts,
        "held": held,
        "summed": summed,
        "state": _state(centre.optimizer_state, arrays),
    }


def _state(state: OptimizerState, arrays: list[Array]) -> Any:
    arrays += [array for kept in state.kept for array in kept]
    return [state.steps, [len(kept) for kept in state.kept]]


def _group(facts: Any, arrays: Iterable[Array]) -> CentreGroup:
    group = CentreGroup(facts["facts"])
    group.clocks.load(facts["clocks"])
    group.known, group.resumed = set(facts["known"]), bool(facts["resumed"])
    if facts["failure"] is not None:
        group.failure = Failure(*facts["failure"])
    if (found := facts["centre"]) is not None:
        count, collected = found["counts"]
        values = list(islice(arrays, count))
        group.centre = Centre(group.clocks, values, group.statistics)
        group.centre.collect(found["held"], found["summed"], list(islice(arrays, collected)))
        group.centre.optimizer_state = _state_of(found["state"], arrays)
    group.commits = {number: _state_of(state, arrays) for number, state in facts["commits"]}
    return group


def _state_of(facts: Any, arrays: Iterable[Array]) -> OptimizerState:
    steps, counts = facts
    return OptimizerState(int(steps), [list(islice(arrays, count)) for count in counts])
