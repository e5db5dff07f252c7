"""The first rows of a Parquet file, read by a separate process with limited memory and time.

A small file can unpack to any size, and the Parquet library takes more memory than the server
itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, BinaryIO

_SECONDS = 20.0
_MEMORY = 1 << 30  # bytes in addition to the library's own memory


def of_parquet(file: BinaryIO, rows: int) -> dict[str, Any]:
    """Return the preview of an open Parquet file, a table of at most ``rows`` rows.

    An unreadable file is shown as binary data, with the cause as its ``note``.
    """
    module = "farandole.dashboard.server.parquet"
    command = [sys.executable, "-m", module, str(rows), str(_MEMORY)]
    try:
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=_SECONDS)
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
        note = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        note = type(error).__name__
    return {"kind": "binary", "complete": False, "note": f"no preview: {note[:200]}"}
