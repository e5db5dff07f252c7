"""The pictures of the documentation: redrawn from stored measurements, legible, linked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.pictures import timeline
from benchmarks.pictures.__main__ import FOLDER, PICTURES
from benchmarks.pictures.style import BOXES, INKS

DOCS = FOLDER.parent
SVG = "{http://www.w3.org/2000/svg}"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def images() -> list[tuple[Path, str, Path]]:
    """Return each image of the pages as (page, alternative text, file)."""
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    return [
        (page, alternative, (page.parent / target).resolve())
        for page in pages
        if "_build" not in page.parts
        for alternative, target in IMAGE.findall(page.read_text())
        if "://" not in target
    ]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_from_stored_measurements(name: str) -> None:
    assert PICTURES[name](FOLDER) == (FOLDER / name).read_text(), "run make pictures"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_suits_light_and_dark_pages(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    style = "".join(each.text or "" for each in root.iter(f"{SVG}style"))
    assert "@media (prefers-color-scheme: dark)" in style
    sizes = [float(size) for size in re.findall(r"font-size[:=]\"?(\d+)", path.read_text())]
    assert min(sizes) >= 12
    width = float(root.attrib["viewBox"].split()[2])
    anchors = {
        text: group.get("text-anchor", "start")
        for group in root.iter(f"{SVG}g")
        for text in group.iter(f"{SVG}text")
    }
    for text in root.iter(f"{SVG}text"):
        # The mean width of a letter of DejaVu Sans is below 0.6 of its size.
        length, x = 0.6 * 12 * len(text.text or ""), float(text.get("x", "0"))
        left = {"start": x, "middle": x - length / 2, "end": x - length}
        begin = left[text.get("text-anchor", anchors.get(text, "start"))]
        assert begin > -10, text.text
        assert begin + length < width + 20, text.text


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast ratio of two colours such as ``#ffffff``."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(mode: int) -> None:
    grounds = [INKS["paper"][mode], INKS["lane"][mode]]
    for name in INKS.keys() - {"paper", "lane"}:
        for ground in grounds:
            assert contrast(INKS[name][mode], ground) >= 4.5, name
    for name, colours in BOXES.items():
        assert contrast(INKS["ink"][mode], colours[mode][0]) >= 4.5, name


def test_images_of_the_pages_exist_and_are_described() -> None:
    found = images()
    assert [(page.name, path.name) for page, _, path in found if not path.is_file()] == []
    assert [(page.name, path.name) for page, text, path in found if len(text) < 15] == []
    linked = {path for _, _, path in found}
    assert [path.name for path in FOLDER.glob("*.svg") if path.resolve() not in linked] == []


def test_a_timelines_spans_are_nested(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "gradient"}},
        {"ph": "B", "name": "ALLREDUCE", "ts": 10.0, "pid": 1},
        {"ph": "X", "name": "1", "ts": 11.0, "dur": 0, "pid": 1},
        {"ph": "B", "name": "QUEUE", "ts": 12.0, "pid": 1},
        {"ph": "E", "name": "QUEUE", "ts": 14.0, "pid": 1},
        {"ph": "E", "name": "ALLREDUCE", "ts": 20.0, "pid": 1},
    ]
    spans, ticks = timeline.slices(events)
    assert spans == [
        timeline.Slice("gradient", "QUEUE", 12.0, 14.0, 1),
        timeline.Slice("gradient", "ALLREDUCE", 10.0, 20.0, 0),
    ]
    assert ticks == [("gradient", "1", 11.0)]


def test_the_stored_step_is_the_shortest(tmp_path: Path) -> None:
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": timeline.LOSS}}
    ]
    for end in (0.0, 1.0, 2.0, 3.0, 10.0, 14.0, 20.0):
        events += [
            {"ph": phase, "name": "ALLREDUCE", "ts": end, "pid": 1, "tid": 0} for phase in "BE"
        ]
    timeline.store(tmp_path, events)
    stored = json.loads((tmp_path / timeline.STORED).read_text())
    assert [event["ts"] for event in stored[1:]] == [14.0, 14.0]
