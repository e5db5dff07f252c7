"""Merging the timelines of several ranks, with one process per rank and one thread per tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.errors import SettingsError

Event = dict[str, Any]


def read(path: str) -> list[Event]:
    """Return the events of a file. Raises SettingsError if it is not a timeline of one rank."""
    try:
        with open(path, encoding="utf-8") as file:
            events = _parsed(file.read())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not a timeline: {error}") from error
    if not isinstance(events, list) or not events or "farandole" not in events[0]:
        raise SettingsError(
            f"{path} is not a timeline of one rank: its first event does not name a rank"
        )
    return events


def _parsed(text: str) -> Any:
    """Return the parsed array, without the last line if it was truncated by a kill."""
    try:
        return json.loads(text)
    except ValueError:
        whole, _, _ = text.rpartition("},\n")
        if not whole:
            raise
        return json.loads(whole + "}]")


def write(path: str, events: Sequence[Event]) -> None:
    """Write a merged timeline. Raises SettingsError if the file cannot be written."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error


def merge(timelines: Sequence[Sequence[Event]]) -> list[Event]:
    """Return all events on one clock, sorted by time. Pure.

    Raises SettingsError if two timelines belong to the same rank.
    """
    heads: list[Mapping[str, Any]] = [events[0]["farandole"] for events in timelines]
    ranks = [head["rank"] for head in heads]
    if len(set(ranks)) < len(ranks):
        raise SettingsError(f"pass one timeline of each rank; these are of ranks {ranks}")
    begin = min((head["begin"] for head in heads), default=0.0)
    names: list[Event] = []
    merged: list[Event] = []
    for head, events in zip(heads, timelines, strict=True):
        rank, shift = head["rank"], head["begin"] - begin
        names += _names(rank, events)
        threads = _Threads()
        for event in events:
            if event["ph"] != "M":
                tid = threads.number(event["pid"], event.get("tid", 0))
                merged.append(
                    {**event, "ts": round(event["ts"] + shift, 3), "pid": rank, "tid": tid}
                )
        names += threads.names(rank, events)
    merged.sort(key=lambda event: event["ts"])  # stable: simultaneous events keep their order
    return names + merged


def _names(rank: int, events: Sequence[Event]) -> list[Event]:
    first = {key: value for key, value in events[0].items() if key.startswith("start_time")}
    return [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}, **first},
        {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}},
    ]


class _Threads:
    """The threads of a merged timeline: one for each (tensor, lane) of a file.

    Thread 0 holds the events without a tensor.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {(0, 0): 0}

    def number(self, pid: int, tid: int) -> int:
        return self._numbers.setdefault((pid, tid), len(self._numbers))

    def names(self, rank: int, events: Sequence[Event]) -> list[Event]:
        labels = {
            event["pid"]: event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "process_name"
        }
        named: list[Event] = []
        for (pid, _), number in self._numbers.items():
            if pid:
                label = {"name": labels.get(pid, str(pid))}
                named.append(
                    {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": label}
                )
                order = {"sort_index": number}
                named.append(
                    {
                        "ph": "M",
                        "name": "thread_sort_index",
                        "pid": rank,
                        "tid": number,
                        "args": order,
                    }
                )
        return named
