"""The file format of a commit: a line with its description and a digest, then the packed state and
the states of parameter servers. Pure.
"""

from __future__ import annotations

import json
from _blake2 import blake2b
from typing import NamedTuple

_FORMAT = "farandole commit 1"


class Commit(NamedTuple):
    """A commit of a state.

    - ``number``: The number of the commit in its training, from 1.
    - ``time``: The time of the commit, in seconds since the epoch.
    - ``state``: The name of the state's class.
    - ``content``: The state, packed by its ``to_bytes``.
    - ``job``: The id of the job that wrote the commit.
    - ``shares``: The number of shares of the job's fixed global batch, or 0.
    - ``servers``: The states of the optimizers on parameter servers, packed; empty if unknown.
    - ``ranks``: The number of ranks if each has written its own values, else 0.
    """

    number: int
    time: float
    state: str
    content: bytes
    job: str = ""
    shares: int = 0
    servers: bytes = b""
    ranks: int = 0

    def to_parts(self) -> tuple[bytes, bytes, bytes]:
        """Return the content of the commit's file: its first line, the state and the servers'
        states.
        """
        facts = {
            "format": _FORMAT,
            "number": self.number,
            "time": self.time,
            "state": self.state,
            "size": len(self.content),
            "servers": len(self.servers),
            "digest": _digest(self.content, self.servers),
            "job": self.job,
            "shares": self.shares,
            "ranks": self.ranks,
        }
        return json.dumps(facts).encode() + b"\n", self.content, self.servers

    @classmethod
    def from_bytes(cls, data: bytes) -> Commit:
        """Parse the content of a commit's file. Raises ValueError with the reason if the file is
        damaged.
        """
        line, _, content = data.partition(b"\n")
        try:
            facts = json.loads(line)
            if facts["format"] != _FORMAT:
                raise ValueError(f"its format is {facts['format']!r}, not {_FORMAT!r}")
            size, digest = int(facts["size"]), str(facts["digest"])
            total = size + int(facts.get("servers", 0))
            found = cls(
                int(facts["number"]),
                float(facts["time"]),
                str(facts["state"]),
                content[:size],
                str(facts.get("job", "")),
                int(facts.get("shares", 0)),
                content[size:],
                int(facts.get("ranks", 0)),
            )
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError("its first line is not the description of a commit") from error
        if len(content) != total:
            raise ValueError(f"it has {len(content)} of {total} bytes")
        if _digest(content) != digest:
            raise ValueError(f"its content does not have the digest {digest}")
        return found


def origin_of(begin: bytes) -> tuple[str, int]:
    """Return the id of the job that wrote the commit whose file begins with ``begin``, and the
    number of the commit; an empty id and 0 if they are unknown.
    """
    try:
        facts = json.loads(begin.partition(b"\n")[0])
        return str(facts.get("job", "")), int(facts.get("number", 0))
    except (AttributeError, TypeError, ValueError):
        return "", 0


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
