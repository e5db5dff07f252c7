"""Codecs: gradients are added up by sending less than all of them. ``contracts.Codec`` is what the engine asks of one.

A codec is a file here and a line in ``registry``; other distributions add theirs by an entry point in the group
``farandole.codecs``. Three bases do most of the work: ``FlatCodec`` (tensors as one flat array, and what was not sent
is kept for the next time), ``Quantized`` (``encode`` and ``decode``) and ``Sparse`` (``select``).
"""

from __future__ import annotations

from collections import deque
from weakref import WeakKeyDictionary

from farandole import registry
from farandole.contracts import Codec
from farandole.errors import SettingsError

_owners: WeakKeyDictionary[Codec, deque[object]] = WeakKeyDictionary()  # the last ones; the one of now stands behind


def codec(spec: str | Codec | None) -> Codec | None:
    """The codec that ``spec`` names, as "name" or "name:argument"; a Codec is given back, nothing is no codec.

    Raises SettingsError for a name that nobody has, and for an argument out of its range.
    """
    if isinstance(spec, str):
        made: Codec | None = registry.make("codec", spec) if spec else None
        return made
    if spec is not None and not hasattr(spec, "allreduce"):
        raise SettingsError(
            f"codec={spec!r} is no codec: give a name ({', '.join(registry.names('codec'))}), as in 'topk:0.01', or an "
            "object with the methods of farandole.contracts.Codec"
        )
    return spec


def keeper(of: Codec | None) -> str:
    """``of``, for messages, if later results depend on what it has not sent; else empty."""
    return "" if of is None or not getattr(of, "feedback", True) else f"codec={of.spec!r}"


def claim(of: Codec | None, owner: object) -> None:
    """The optimizer ``owner`` (None: it has made ``of`` for itself) uses ``of`` now. Another may take its place, for
    good.

    Raises ValueError if two take turns: what was not sent of one would be sent for the other."""
    if of is None or owner is None or not keeper(of):
        return
    try:
        owners = _owners.setdefault(of, deque(maxlen=16))
    except TypeError:  # somebody else's, which cannot be a key
        return
    if not any(one is owner for one in owners):
        owners.append(owner)
    elif owners[-1] is not owner:
        raise ValueError(
            f"{keeper(of)} is one object for several optimizers, and what it has not sent of one would go to the "
            f"other: give each an object of its own, or the name {of.spec!r}, of which each makes one"
        )
