"""The starts and ends of a run's ranks: ``ranks.jsonl`` in its folder.

Its records are ``{"slots": [[rank, host], ...], "time"}`` for each start of all ranks, and
``{"rank", "code", "time"}`` for each end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.base.types import Slot
from farandole.job.runs.folder import RunFolder
from farandole.job.runs.journal import JournalWriter, records

_FILE = "ranks.jsonl"


class RankProcess(NamedTuple):
    """The latest process of a rank: its host, and its exit code; None while it runs."""

    host: str
    code: int | None = None


class RankJournal:
    """Records the starts and ends of a run's ranks. A full disk does not end the run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def started(self, slots: Sequence[Slot]) -> None:
        self._append({"slots": [[slot.rank, slot.host] for slot in slots]})

    def ended(self, rank: int, code: int) -> None:
        self._append({"rank": rank, "code": code})

    def _append(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError), JournalWriter(self._folder.file(_FILE)) as journal:
            journal.append({**record, "time": round(time.time(), 3)})


def processes(folder: RunFolder) -> dict[int, RankProcess]:
    """Return the latest process of each rank that has been started."""
    found: dict[int, RankProcess] = {}
    for record in records(folder.file(_FILE)):
        if "slots" in record:
            found = {rank: RankProcess(host) for rank, host in record["slots"]}
        elif record.get("rank") in found:
            found[record["rank"]] = found[record["rank"]]._replace(code=record["code"])
    return found
