"""Codecs: gradients are added up by sending less than all of them. ``contracts.Codec`` is what the engine asks of one.

A codec is a file here and a line in ``registry``; other distributions add theirs by an entry point in the group
``farandole.codecs``. Three bases do most of the work: ``FlatCodec`` (tensors as one flat array, and what was not sent
is kept for the next time), ``Quantized`` (``encode`` and ``decode``) and ``Sparse`` (``select``).
"""

from __future__ import annotations

from farandole import registry
from farandole.contracts import Codec
from farandole.errors import SettingsError


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
