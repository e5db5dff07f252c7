"""Strategies by the partners and the moment of an exchange."""

from __future__ import annotations

from benchmarks.pictures.style import Drawing

COLUMNS = (
    (150, 205, "all ranks together", "collective"),
    (365, 185, "a centre", "parameter servers"),
    (560, 185, "neighbours", "no centre"),
)
ROWS = (
    (92, 92, "in every step", ""),
    (192, 92, "every H steps", ""),
    (292, 66, "within a bound", "wait if s ahead"),
    (366, 66, "at any time", "no waiting"),
)
# Row, column, place in the cell -> strategy, exchanged data, whether it accepts a codec.
STRATEGIES = {
    (0, 0, 0): ("allreduce", "blue", True),
    (0, 0, 1): ("adasum", "blue", False),
    (0, 1, 0): ("ps", "green", True),
    (0, 1, 1): ("ps, backup=k", "green", True),
    (0, 2, 0): ("gossip", "green", True),
    (1, 0, 0): ("local_sgd:H", "green", True),
    (1, 0, 1): ("bmuf:H", "green", True),
    (1, 0, 2): ("diloco:H", "green", True),
    (1, 0, 3): ("easgd:H", "green", True),
    (1, 1, 0): ("ps:H", "green", True),
    (1, 2, 0): ("gossip, every=H", "green", True),
    (2, 1, 0): ("ssp:s", "green", True),
    (3, 1, 0): ("ps_async", "green", True),
    (3, 2, 0): ("gossip_async", "green", False),
}
NOTES = {
    (0, 0): "wait for all ranks",
    (0, 2): "wait for neighbours",
}


def draw() -> str:
    found = Drawing(
        760,
        486,
        "Partners of an exchange, and when it happens",
        "Rows: in every step, every H steps, within a bound, at any time. Columns: all ranks"
        " together, a centre, neighbours. Each cell names its strategies.",
    )
    for x, width, title, subtitle in COLUMNS:
        found.text(x + 8, 60, title, "ink b")
        found.text(x + 8, 78, subtitle, "dim")
        for y, height, *_ in ROWS:
            found.rect(x, y, width, height, "lane", radius=6)
    for y, height, title, subtitle in ROWS:
        middle = y + height / 2 + (5 if not subtitle else -3)
        found.text(15, middle, title, "ink b")
        if subtitle:
            found.text(15, middle + 18, subtitle, "dim")
    for (row, column, place), strategy in STRATEGIES.items():
        _box(found, row, column, place, strategy)
    for (row, column), note in NOTES.items():
        x, y = COLUMNS[column][0], ROWS[row][0]
        found.text(x + 10, y + 76, note, "dim")
    _legend(found)
    return found.svg()


def _box(
    found: Drawing, row: int, column: int, place: int, strategy: tuple[str, str, bool]
) -> None:
    name, kind, codec = strategy
    x, width, *_ = COLUMNS[column]
    y, height, *_ = ROWS[row]
    if column == 0:  # two in a line
        wide = (width - 26) / 2
        left, top = x + 9 + (place % 2) * (wide + 8), y + 12 + (place // 2) * 38
    else:
        wide = width - 18
        left, top = x + 9, y + 12 + place * 38
        if height < 80:
            top = y + (height - 30) / 2
    found.rect(left, top, wide, 30, kind, radius=6)
    found.text(left + wide / 2, top + 19, name, "ink", "middle")
    if codec:
        found.path(f"M{left + 8:g} {top + 25:g} h{wide - 16:g}", "l-s2")


def _legend(found: Drawing) -> None:
    found.rect(15, 452, 26, 16, "blue", radius=4)
    found.text(48, 465, "gradients")
    found.rect(150, 452, 26, 16, "green", radius=4)
    found.text(183, 465, "weights, or changes of weights")
    found.path("M430 461 h26", "l-s2")
    found.text(464, 465, "accepts a codec, which saves bytes")
