"""Codecs: reductions that send compressed tensors. See ``contracts.Codec`` for the interface.

A codec is a file in this folder and a line in ``registry``; other distributions add codecs by an
entry point in the group ``farandole.codecs``. Three base classes do most of the work: ``FlatCodec``
(tensors as one flat array, with error feedback), ``Quantized`` (``encode`` and ``decode``) and
``Sparse`` (``select``).
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
    """A codec that can release the residual of a tensor that will be sent without the codec."""

    def release(self, key: str) -> Array | None:
        """Remove this rank's residual of the tensor and return it, flat and in the tensor's units.
        None if there is none.
        """


_owners: dict[int, dict[str, deque[object]]] = {}  # by id of a codec


def codec(spec: str | Codec | None) -> Codec | None:
    """Return the codec that ``spec`` names, as "name" or "name:argument". A Codec is returned
    unchanged; an empty ``spec`` gives None.

    Raises SettingsError for an unknown name and for an argument out of range.
    """
    if isinstance(spec, str):
        made: Codec | None = registry.make("codec", spec) if spec else None
        return made
    if spec is not None and not hasattr(spec, "allreduce"):
        raise SettingsError(
            f"codec={spec!r} is not a codec. Use a name ({', '.join(registry.names('codec'))}), as"
            " in 'topk:0.01', or an object with the methods of farandole.strategies.Codec"
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
    """Record that the optimizer ``owner`` uses ``of`` for tensors of these names. None: the
    optimizer has created its own codec.

    An optimizer may replace another one permanently. Raises ValueError if two alternate with one
    name: the state of one tensor would be applied to the other.
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
                f"{label} is one object shared by several optimizers that have a tensor {name!r},"
                " and its state would mix their residuals. Give each optimizer its own object, or"
                f" use the name {of.spec!r}, which creates one per optimizer. Create an optimizer"
                " outside jitted functions: each trace would create another one"
            )


def _owners_of(of: Codec) -> dict[str, deque[object]]:
    """Return the latest optimizers of this codec object by tensor name, the present one last. Other
    codec objects may compare equal.
    """
    found = _owners.get(id(of))
    if found is None:
        found = {}
        with suppress(TypeError):  # a custom codec without weak references
            weakref.finalize(of, _owners.pop, id(of), None).atexit = False
            _owners[id(of)] = found
    return found
