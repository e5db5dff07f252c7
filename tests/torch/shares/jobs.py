"""Jobs with a fixed global batch in the processes of a test."""

from __future__ import annotations

from typing import Any


def with_shares(total: int) -> None:
    """Make this rank's job one of ``total`` shares."""
    from farandole.job.config import Connection
    from farandole.job.context import session

    current = session.current()
    session.begin(current._replace(connection=Connection(shares=total)))


def bits(*tensors: Any) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]
