"""Detection of state outside of variables that differs between ranks, such as the vocabulary of a
lookup layer that each rank adapted to its own data.

Gradients of such ranks are averaged although row k of an embedding means a different word on each
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from farandole.base.digests import digest_of_text
from farandole.checks.catalogue import HELD_STATE
from farandole.checks.finding import Finding
from farandole.errors import ranks_named

HELD_CURE = (
    "Adapt the layer to the same data on all ranks, or send the state of one rank before the layer"
    " is used: layer.set_vocabulary(hvd.broadcast_object(layer.get_vocabulary()))"
)


class HeldState(NamedTuple):
    """The state of one object on one rank.

    ``owner``: the object, for messages ("layer 'string_lookup'"). ``what``: the noun for its state
    ("vocabulary"). ``digest``: differs when states differ. ``entries``: the number of entries; 0
    for an object that has no state yet; -1 if it has no length. ``value``: a short value, for
    messages.
    """

    owner: str
    what: str
    digest: int
    entries: int = -1
    value: str = ""


# Functions that return this process's states outside of models, in the program's order.
sources: list[Callable[[], list[HeldState]]] = []


def held() -> list[HeldState]:
    """Return the states of all sources; empty if one cannot be read now."""
    try:
        return [state for source in sources for state in source()]
    except Exception:  # an error in a third-party object must not end training
        return []


def digest_of_states(states: Sequence[HeldState]) -> int | None:
    """Return a digest of all states; None without any."""
    return digest_of_text(repr([(one.what, one.digest) for one in states])) if states else None


def places_that_differ(reports: Sequence[Sequence[HeldState]]) -> list[int]:
    """Return the indices of states that differ between ranks; empty if ranks hold different
    objects.

    ``reports``: the states of each rank.
    """
    if len({tuple(state.what for state in report) for report in reports}) > 1:
        return []
    columns = zip(*reports, strict=True)
    return [
        place for place, column in enumerate(columns) if len({one.digest for one in column}) > 1
    ]


def different_state(
    states: Sequence[HeldState], root: int, ranks: Sequence[int], cure: str, *, taken: bool = False
) -> Finding | None:
    """Return the finding for one object; None if the differing ranks have no state yet and adopt
    the root's.

    ``states``: one per rank. ``root``: the index of the rank to compare with. ``ranks``: the ranks'
    numbers in the job. ``taken``: all ranks use the root's state from now on.
    """
    mine = states[root]
    odd = [
        place
        for place, state in enumerate(states)
        if state.digest != mine.digest and (state.entries or not taken)
    ]
    if not odd:
        return None
    other = states[odd[0]]
    text = (
        f"{mine.owner} has a different {mine.what} on"
        f" {ranks_named([ranks[place] for place in odd])}{_shown(other)} than on rank"
        f" {ranks[root]}{_shown(mine)}, so equal inputs have different meanings on these ranks."
    )
    text += f" All ranks now use the {mine.what} of rank {ranks[root]}. " if taken else " "
    return HELD_STATE.finding(f"{text}{cure}", cure=cure, where=mine.owner)


def _shown(state: HeldState) -> str:
    if state.value:
        return f" ({state.value})"
    if state.entries < 0:
        return ""
    return f" ({state.entries} {'entry' if state.entries == 1 else 'entries'})"
