"""Errors of one rank that end a group, as the reason of an abort. The text includes the type, so
that all ranks raise the same type for the same event.
"""

from __future__ import annotations

import re

from farandole.errors import MismatchError, PeerLostError, StalledError

_TYPES = {kind.__name__: kind for kind in (StalledError, MismatchError)}
_REASON = re.compile(rf"({'|'.join(_TYPES)}) \(rank (-?\d+)\): (.*)", re.DOTALL)


def reason_of(error: BaseException, text: str) -> str:
    """Return the reason of an abort caused by ``error``. ``text``: the error as text for other
    ranks.
    """
    kind = type(error).__name__
    if kind not in _TYPES:
        return text
    return f"{kind} (rank {getattr(error, 'rank', -1)}): {text}"


def restored(error: Exception) -> Exception:
    """Return the error for a rank on which ``error`` reports an abort: the error of the aborting
    rank, if its type is known. Other errors are returned unchanged.
    """
    found = _REASON.fullmatch(str(error)) if type(error) is PeerLostError else None
    if found is None:
        return error
    kind, rank, text = found.groups()
    return StalledError(text, int(rank)) if _TYPES[kind] is StalledError else MismatchError(text)
