"""The runs that the browser's tests show."""

from __future__ import annotations

import json
import math
import random
import struct
import textwrap
import zlib
from pathlib import Path

import farandole
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.home import RunsHome
from farandole.job.runs.journal import JournalWriter
from farandole.job.runs.states import RunState
from farandole.job.tracking.tracker import FINDING
from tests.kits.written_runs import add_points, written_run

HOSTILE = "<script>document.title = 'owned'</script>"
NO_EXCHANGE = "no gradients were exchanged in the first 20 steps"
LINES = 60_000  # of the long log
NEEDLE = 12_345  # the line with the searched text
SWEEP = 150  # runs of one experiment
POINTS = 5000

LIVE = """
    import pathlib, time
    import farandole, farandole.numpy as hvd

    hvd.init()
    here = pathlib.Path(__file__).parent
    for step in range(100_000):
        farandole.log_metrics({"loss": 1 / (1 + step), "step_seconds": 0.05}, step)
        print(f"step {step} of rank {hvd.rank()}", flush=True)
        time.sleep(0.05)
"""


def png(width: int, height: int) -> bytes:
    """Return an image with a gradient."""
    rows = b"".join(
        b"\0" + bytes(v for x in range(width) for v in (255 * x // width, 120, 255 * y // height))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def learning(rate: float, steps: int, seed: int) -> dict[str, list[float]]:
    """Return the curves of a training that converges with ``rate``."""
    draw = random.Random(seed)
    loss = [2.3 * math.exp(-rate * at) + 0.05 + 0.08 * draw.random() for at in range(steps)]
    return {
        "loss": loss,
        "val/accuracy": [max(0.1, 0.98 - each / 2.6) for each in loss[:: max(1, steps // 60)]],
    }


def long_log() -> bytes:
    lines = (
        f"line {at}: {'the needle is here' if at == NEEDLE else 'loss 0.25, throughput 1200 images/s'}"
        for at in range(1, LINES + 1)
    )
    return ("\n".join(lines) + "\nthe last line\n").encode()


def write_runs(home: RunsHome) -> dict[str, RunFolder]:
    """Write finished runs: of two experiments by name, and a sweep."""
    for at in range(SWEEP):
        written_run(home, "sweep", name=f"trial {at:03d}", metrics={"loss": [1 / (1 + at)]})
    found = {
        "base": written_run(
            home,
            "digits",
            name="one rank",
            tags={"team": "vision"},
            metrics=learning(0.004, POINTS, 1),
            logs=[long_log()],
            outputs={
                "confusion.png": png(160, 120),
                "classes.csv": b"class,recall\ncat,0.9\ndog,0.8\n",
                "page.html": HOSTILE.encode(),
                "timeline.json": timeline(),
            },
        ),
        "ranks": written_run(
            home,
            "digits",
            name="four ranks",
            ranks=4,
            metrics=learning(0.012, POINTS, 2),
            logs=[f"hello of rank {rank}\n".encode() for rank in range(4)],
            command=("python", "train.py", "--rate", "0.4"),
        ),
        "failed": written_run(
            home,
            "digits",
            RunState.FAILED,
            name="too fast",
            cause="rank 1 failed: ValueError: the loss is NaN",
            metrics={**learning(0.1, 40, 3), "gradient": [1.0, 4.0, math.inf, math.nan]},
        ),
        "hostile": written_run(home, "digits", name=HOSTILE, tags={HOSTILE: HOSTILE}),
    }
    for rank in range(1, 4):
        add_points(found["ranks"], learning(0.012, POINTS, 2 + rank), rank)
    with JournalWriter(found["ranks"].metrics_of(0)) as journal:
        journal.append({"kind": FINDING, "code": "FAR012", "text": NO_EXCHANGE, "time": 1000.0})
    return found


def timeline() -> bytes:
    """Return the timeline of one rank: a negotiation, and in it the wait for other collectives."""
    head = {"name": "farandole", "ph": "M", "pid": 0, "tid": 0, "args": {}}
    spans = [("NEGOTIATE_ALLREDUCE", 10.0, 2000.0), ("ALLREDUCE", 2010.0, 500.0)]
    events = [
        {**head, "farandole": {"rank": 0, "begin": 5.0}},
        {**head, "name": "process_name", "pid": 1, "args": {"name": "gradient"}},
        *({"name": name, "ph": "X", "ts": at, "dur": dur, "pid": 1} for name, at, dur in spans),
    ]
    return json.dumps(events).encode()


def submit_live(folder: Path) -> farandole.Run:
    """Submit a run of two ranks that trains until it is stopped."""
    (folder / "train.py").write_text(textwrap.dedent(LIVE))
    request = farandole.ScriptRun(str(folder), "train.py", name="live", ranks_per_node=2)
    return farandole.Experiment("live").submit(request)
