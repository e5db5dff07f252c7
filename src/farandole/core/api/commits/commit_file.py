"""The file format of a commit: a line with its description and a digest, then the packed state.
Pure.
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
    """

    number: int
    time: float
    state: str
    content: bytes
    job: str = ""
    shares: int = 0

    def to_parts(self) -> tuple[bytes, bytes]:
        """Return the content of the commit's file, as its first line and the rest."""
        facts = {
            "format": _FORMAT,
            "number": self.number,
            "time": self.time,
            "state": self.state,
            "size": len(self.content),
            "digest": _digest(self.content),
            "job": self.job,
            "shares": self.shares,
        }
        return json.dumps(facts).encode() + b"\n", self.content

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
            found = cls(
                int(facts["number"]),
                float(facts["time"]),
                str(facts["state"]),
                content,
                str(facts.get("job", "")),
                int(facts.get("shares", 0)),
            )
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError("its first line is not the description of a commit") from error
        if len(content) != size:
            raise ValueError(f"it has {len(content)} of {size} bytes")
        if _digest(content) != digest:
            raise ValueError(f"its content does not have the digest {digest}")
        return found


def job_of(begin: bytes) -> str:
    """Return the id of the job that wrote the commit whose file begins with ``begin``; empty if it
    is unknown.
    """
    try:
        return str(json.loads(begin.partition(b"\n")[0]).get("job", ""))
    except (AttributeError, ValueError):
        return ""


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
