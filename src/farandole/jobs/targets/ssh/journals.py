"""The stream of a host's metric journals: frames with a name, a size and new bytes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import IO

SECONDS = 1.0  # between two reads of the journals

# Reads the journals a last time when its stdin closes, then exits.
_PROGRAM = """
import json, os, select, sys
folder, seconds, offsets = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
over = False
while not over:
    over = bool(select.select([0], [], [], seconds)[0])
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        with open(os.path.join(folder, name), "rb") as file:
            file.seek(offsets.get(name, 0))
            while data := file.read(1 << 20):
                offsets[name] = offsets.get(name, 0) + len(data)
                head = json.dumps({"name": name, "bytes": len(data)}).encode()
                sys.stdout.buffer.write(head + b"\\n" + data)
    sys.stdout.buffer.flush()
"""


def program(python: str, folder: str, offsets: str) -> list[str]:
    """Return the command that streams the journals in ``folder``.

    Args:
        python: The interpreter; hosts without it use ``python3``.
        folder: The folder of the journals.
        offsets: The number of received bytes by file, as JSON.
    """
    words = shlex.join([_PROGRAM, folder, str(SECONDS), offsets])
    script = f'p={shlex.quote(python)}; [ -x "$p" ] || p=python3; exec "$p" -I -S -c {words}'
    return ["sh", "-c", script]


def received(stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the new bytes of each complete frame in a stream.

    Other lines, such as the output of login scripts, are skipped.
    """
    while line := stream.readline():
        try:
            head = json.loads(line)
            name, size = str(head["name"]), int(head["bytes"])
        except (ValueError, TypeError, KeyError):
            continue
        data = stream.read(size)
        if len(data) == size:
            yield name, data
