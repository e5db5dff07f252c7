"""Codecs: gradients are added up by sending less than all of them. ``contracts.Codec`` is what the
engine asks of one.

A codec is a file here and a line in ``registry``; other distributions add theirs by an entry point
in the group ``farandole.codecs``. Three bases do most of the work: ``FlatCodec`` (tensors as one
flat array, and what was not sent is kept for the next time), ``Quantized`` (``encode`` and
``decode``) and ``Sparse`` (``select``).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from farandole.base.contracts import Codec
from farandole.errors import SettingsError
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from farandole.base.types import Array


@runtime_checkable
class Releasable(Protocol):
    """A codec that keeps what it has not sent of a tensor, and can give it away: the tensor travels
    otherwise now.
    """

    def release(self, key: str) -> Array | None:
        """What this rank has not sent of the tensor, flat and in its units, which the codec keeps
        no more. None if that is nothing.
        """


_owners: dict[int, dict[str, deque[object]]] = {}  # by id of a codec


def codec(spec: str | Codec | None) -> Codec | None:
    """The codec that ``spec`` names, as "name" or "name:argument"; a Codec is given back, nothing
    is no codec.

    Raises SettingsError for a name that nobody has, and for an argument out of its range.
    """
    if isinstance(spec, str):
        made: Codec | None = registry.make("codec", spec) if spec else None
        return made
    if spec is not None and not hasattr(spec, "allreduce"):
        raise SettingsError(
            f"codec={spec!r} is no codec: give a name ({', '.join(registry.names('codec'))}), as in"
            " 'topk:0.01', or an object with the methods of farandole.strategies.Codec"
        )
    return spec


def state_label(of: Codec | None) -> str:
    """Return the label, for messages, of a codec whose later results depend on its state
    (residuals, momentum); empty for others.
    """
    return (
        ""
        if of is None or not getattr(of, "keeps", getattr(of, "feedback", True))
        else f"codec={of.spec!r}"
    )


def claim(of: Codec | None, owner: object, names: Iterable[str]) -> None:
    """The optimizer ``owner`` (None: it has made ``of`` for itself) uses ``of`` now, for tensors of
    these names. Another may take its place, for good.

    Raises ValueError if two take turns with one name: what is kept of one's tensor would count for
    the other's.
    """
    label = "" if owner is None else state_label(of)
    if of is None or not label:
        return
    for name in names:
        owners = _owners_of(of).setdefault(name, deque(maxlen=16))
        if not any(one is owner for one in owners):
            owners.append(owner)
        elif owners[-1] is not owner:
            raise ValueError(
                f"{label} is one object for several optimizers that have a tensor {name!r},"
                " and what it keeps of one's would go to the other's: give each an object of its"
                f" own, or the name {of.spec!r}, of which each makes one. An optimizer that a"
                " jitted function makes is another one in each trace: make it outside"
            )


def _owners_of(of: Codec) -> dict[str, deque[object]]:
    """By name of a tensor, the last ones; the one of now stands behind. Of this very object: others
    may be equal.
    """
    found = _owners.get(id(of))
    if found is None:
        found = {}
        with suppress(TypeError):  # somebody else's, of which nobody hears when it goes
            weakref.finalize(of, _owners.pop, id(of), None).atexit = False
            _owners[id(of)] = found
    return found
