"""``make pictures``: draws the pictures of the documentation from stored measurements.

``python -m benchmarks.pictures --record timeline notebook`` runs these two programs again first.
The other measurements come from ``farandole bench``; their files name the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.pictures import (
    choose,
    codecs,
    notebook,
    ranks,
    runner,
    servers,
    strategies,
    timeline,
)

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
RECORDED = {"timeline": timeline.record, "notebook": notebook.record}
PICTURES: dict[str, Callable[[Path], str]] = {
    "codecs.svg": codecs.draw,
    "horovod_runner.svg": lambda _: runner.draw(),
    "notebook.svg": notebook.draw,
    "servers.svg": lambda _: servers.draw(),
    "speed_by_ranks.svg": ranks.draw,
    "strategies.svg": lambda _: choose.draw(),
    "strategies_in_time.svg": strategies.draw,
    "timeline.svg": timeline.draw,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument(
        "--record",
        nargs="*",
        choices=sorted(RECORDED),
        default=[],
        help="run these programs again before drawing",
    )
    for name in parser.parse_args().record:
        RECORDED[name](FOLDER)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(FOLDER))


if __name__ == "__main__":
    main()
