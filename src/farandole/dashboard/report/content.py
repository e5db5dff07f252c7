"""The content of a report, for readers who have only this file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from farandole.dashboard.report.document import (
    Block,
    Chart,
    Charts,
    Document,
    Line,
    Output,
    Pairs,
    Picture,
    Pictures,
    Section,
    Table,
    Texts,
)
from farandole.dashboard.server import files, images, logs
from farandole.dashboard.server.rank_table import rank_table
from farandole.dashboard.server.series import decimate, within
from farandole.errors import counted
from farandole.job.runs.folder import RunFolder
from farandole.jobs import metrics
from farandole.jobs.comparison import compare
from farandole.jobs.comparison.fairness import label
from farandole.jobs.comparison.text import measure_rows
from farandole.jobs.details import details, readable_duration, readable_size, readable_time
from farandole.jobs.follow import log_path
from farandole.jobs.metrics.columns import RankColumns
from farandole.jobs.redaction import redacted, redacted_value
from farandole.jobs.summary import summary

_POINTS = 300  # maximum per curve
_MOST_CHARTS = 24
_LOG_BYTES = 8000
_MOST_ROWS = 100
_MOST_PICTURE, _MOST_PICTURES = 1 << 20, 4 << 20  # bytes of one image, and of all


def report(folders: Sequence[RunFolder]) -> Document:
    """Return the report of one run, or of several runs after their comparison.

    Raises RunError if the folder of a run is damaged.
    """
    if len(folders) == 1:
        found = details(folders[0])
        return Document(found["name"] or found["run_id"], run_sections(folders[0]))
    sections = comparison_sections(folders)
    for folder in folders:
        found = details(folder)
        sections.append(Section(found["name"] or found["run_id"], []))
        sections += [each._replace(level=2) for each in run_sections(folder)]
    return Document(f"Comparison of {counted(len(folders), 'run')}", sections)


def run_sections(folder: RunFolder) -> list[Section]:
    """Return the parts of a report about one run."""
    found, noted = details(folder), summary(folder)
    sections = [
        Section("Run", [Pairs(_facts(found, folder))]),
        Section("Cause of the end", _cause(found["cause"], folder)),
        Section("Findings", _texts(noted["findings"], folder, warning=True)),
        Section("Metrics", [Charts(charts([folder]))]),
        Section("Measured by Farandole", [Charts(charts([folder], automatic=True))]),
        Section(
            "Parameters",
            [Pairs(_pairs({**found["parameters"], **noted["logged_parameters"]}, folder))],
        ),
        Section("Tables", _tables(folder)),
        Section("Pictures", [Pictures(_pictures(folder))]),
        Section("Ranks", [Table(_rank_rows(folder))]),
        Section("Environment", _environment(found, folder)),
        Section("Outputs", [Table(_output_rows(found["artifacts"]))]),
        Section("Notes", _texts(found["messages"], folder)),
        Section("End of the log", [Output(_log_tail(folder))]),
    ]
    return [each for each in sections if any(_is_filled(block) for block in each.blocks)]


def comparison_sections(folders: Sequence[RunFolder]) -> list[Section]:
    """Return the parts of a report about the comparison of several runs."""
    found = compare(folders)
    names = [label(each) for each in found.measures]
    measures = measure_rows(found)
    known = {row[0] for row in measures} | {"seconds", "rank-hours"}
    differing = [
        [name, *("" if value is None else str(value).split("\n")[0] for value in values)]
        for name, values in {**found.differences, **found.environment}.items()
        if name not in known
    ]
    cleaned = [[name, *_cells(name, cells, folders)] for name, *cells in differing]
    sections = [
        Section(
            "Why these runs are not comparable",
            [Texts([f"{each.seen} {each.why} {each.cure}" for each in found.unfair], True)],
        ),
        Section("Measures", [Table([["", *names], *measures] if measures else [])]),
        Section("Metrics", [Charts(charts(folders, names))]),
        Section("Differences", [Table([["", *names], *cleaned] if cleaned else [])]),
    ]
    return [each for each in sections if any(_is_filled(block) for block in each.blocks)]


def charts(
    folders: Sequence[RunFolder], labels: Sequence[str] = (), *, automatic: bool = False
) -> list[Chart]:
    """Return a chart for each metric of rank 0, with a line for each run that recorded it.

    ``labels``: the names of the lines. ``automatic``: whether to chart Farandole's automatic
    metrics instead of the program's.
    """
    columns = [RankColumns.of(folder, 0) for folder in folders]
    names = dict.fromkeys(
        name for folder in folders for name in metrics.names(folder, 0, automatic=automatic)
    )
    found = []
    for name in [*names][:_MOST_CHARTS]:
        lines = []
        for place, each in enumerate(columns):
            steps, _, values = each.series(name)
            curve = decimate(*within(steps, values, None, None), _POINTS)
            if curve.total:
                text = labels[place] if labels else ""
                lines.append(Line(text, curve.x, curve.y, curve.low, curve.high))
        if lines:
            found.append(Chart(name, lines))
    return found


def _cells(name: str, cells: Sequence[str], folders: Sequence[RunFolder]) -> list[str]:
    """Return the values of one fact, one per run, without secrets."""
    pairs = zip(cells, folders, strict=True)
    return [redacted_value(name, cell, folder.path) for cell, folder in pairs]


def _is_filled(block: Block) -> bool:
    return bool(block[0])


def _facts(found: dict[str, Any], folder: RunFolder) -> list[tuple[str, str]]:
    submission = found["submission"]
    git = submission.get("git")
    places = f"{counted(found['ranks'], 'rank')} on {counted(found['nodes'], 'node')}"
    pairs = [
        ("run", found["run_id"]),
        ("experiment", found["experiment"]),
        ("state", found["state"]),
        ("exit code", "" if found["exit_code"] is None else str(found["exit_code"])),
        ("command", " ".join(found["command"]) or "a function"),
        ("target", f"{found['target']}: {places}"),
        ("submitted", f"{readable_time(found['submitted'])} by {submission.get('user', '')}"),
        ("started", readable_time(found["started"])),
        ("ended", readable_time(found["ended"])),
        ("duration", readable_duration(found["seconds"])),
        ("attempts", str(found["attempts"]) if found["attempts"] > 1 else ""),
        ("settings", ", ".join(f"{name}={value}" for name, value in found["settings"].items())),
        ("tags", ", ".join(f"{name}={value}" for name, value in folder.tags().items())),
        ("git", f"{git['commit']}{' with changes' if git['dirty'] else ''}" if git else ""),
        ("source", submission.get("snapshot", "")),
    ]
    return [(name, redacted(value, folder.path)) for name, value in pairs if value]


def _cause(text: str, folder: RunFolder) -> list[Block]:
    return [Output(redacted(text, folder.path))] if text else []


def _texts(texts: Sequence[str], folder: RunFolder, *, warning: bool = False) -> list[Block]:
    return [Texts([redacted(text, folder.path) for text in texts], warning)] if texts else []


def _pairs(values: dict[str, Any], folder: RunFolder) -> list[tuple[str, str]]:
    return sorted(
        (redacted(name, folder.path), redacted_value(name, str(value), folder.path))
        for name, value in values.items()
    )


def _tables(folder: RunFolder) -> list[Block]:
    """Return the tables logged by rank 0."""
    found: list[Block] = []
    for name, rows in metrics.tables(folder).items():
        header = list(dict.fromkeys(key for row in rows for key in row))
        cells = [
            [redacted_value(key, str(row.get(key, "")), folder.path) for key in header]
            for row in rows[:_MOST_ROWS]
        ]
        names = [redacted(key, folder.path) for key in header]
        found += [Texts([redacted(name, folder.path)]), Table([names, *cells])]
    return found


def _pictures(folder: RunFolder) -> list[Picture]:
    """Return the images among the run's outputs, of at most 1 MiB each and 4 MiB together."""
    found: list[Picture] = []
    total = 0
    for each in files.listing(folder)["files"]:
        size = each["bytes"]
        if not each["path"].startswith("outputs/") or size > _MOST_PICTURE:
            continue
        with files.opened(folder, each["path"]) as file:
            data = file.read(_MOST_PICTURE)
        image = images.recognized(data)
        if image is not None and image.showable(size) and total + size <= _MOST_PICTURES:
            total += size
            found.append(Picture(each["path"], image.type, data))
    return found


def _rank_rows(folder: RunFolder) -> list[list[str]]:
    rows = [
        [
            str(each["rank"]),
            str(each["node"]),
            each["host"],
            each["state"],
            "" if each["exit_code"] is None else str(each["exit_code"]),
        ]
        for each in rank_table(folder)[:_MOST_ROWS]
    ]
    return [["rank", "node", "host", "state", "exit code"], *rows]


def _environment(found: dict[str, Any], folder: RunFolder) -> list[Block]:
    environment = {name: value for name, value in found["environment"].items() if value}
    environment.pop("content", None)
    pairs = {**environment, **found["submission"].get("versions", {})}
    blocks: list[Block] = [Pairs(_pairs(pairs, folder))]
    try:
        with files.opened(folder, "environment.lock") as file:
            blocks.append(Output(redacted(logs.readable(file.read(_LOG_BYTES)), folder.path)))
    except OSError:
        pass
    return blocks


def _output_rows(artifacts: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [
        [each["path"], readable_size(each["bytes"]), each["sha256"]]
        for each in artifacts[:_MOST_ROWS]
    ]
    if len(artifacts) > len(rows):
        rows.append([f"and {len(artifacts) - len(rows)} more", "", ""])
    return [["file", "size", "SHA-256"], *rows] if rows else []


def _log_tail(folder: RunFolder) -> str:
    """Return the last lines of the log of all ranks; without one, of rank 0's log."""
    for rank in (None, 0):
        name = os.path.relpath(log_path(folder, rank), folder.path)
        try:
            with files.opened(folder, name) as file:
                text: str = logs.piece(file, -_LOG_BYTES, _LOG_BYTES)["text"]
        except OSError:
            continue
        if text:
            return redacted(text, folder.path)
    return ""
